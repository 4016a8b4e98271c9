package place

import (
	"testing"
)

func TestServerKind(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/":                 "a web server",
		"\x00\x00\x00\x04\x00":  "a gRPC server", // without settings
		"\x00\x00\x12\x04\x00":  "a gRPC server",
		"\x00\x00\x13\x04\x00":  "", // no whole number of settings
		"\x00\x00\x12\x04\x01":  "", // an answer to settings that nobody sent
		"\x00\x00\x12\x00\x00":  "",
		"\x01\x00\x12\x04\x00":  "",
		"SSH-2":                 "",
		"":                      "",
		"\x00\x00\x00\x04":      "",
		"\x00\x00\x00\x04\x00x": "",
	} {
		if got := serverKind([]byte(answer)); got != want {
			t.Errorf("%q: %q, want %q", answer, got, want)
		}
	}
}
