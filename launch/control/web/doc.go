// Package web serves a job over HTTP at an address of the user's choice (--http): a page for people, and for programs
// what the page is made of. What is told and done is the matter of a control.Served, as at the socket of a run
// directory.
//
// Who is heard: on loopback the processes of the job's user and of root may look; everybody else, on any other address
// too, shows the job's token first. To change something always takes the token. Whatever clients do is bounded, and the
// job waits for none of them: one goroutine looks at the job at its own pace, and all clients are given what it saw.
package web
