// Package manifesttest decodes what muster manifest writes into the Go types that the projects publish. It holds tests
// only.
package manifesttest
