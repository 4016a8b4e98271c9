package sshexec_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/internal/proc"
)

// The test's own binary is what is sent to machines: it plays the agent there.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "_guardian":
			os.Exit(proc.RunGuardian())
		case "agent":
			os.Exit(agent(os.Args[2:]))
		case "relay":
			os.Exit(relay(os.Args[2]))
		}
	}
	// What the ssh library leaves where a connection ends while a channel is asked for: see connection.whileThere.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("golang.org/x/crypto/ssh.(*mux).openChannel"))
}

// agent echoes its input until that ends, after a line with its arguments. It ends with 7.
func agent(args []string) int {
	fmt.Printf("agent %s in %s\n", strings.Join(args, " "), os.Getenv("HOME"))
	_, _ = io.Copy(os.Stdout, os.Stdin)
	return 7
}

// relay connects its standard input and output to an address, as nc does.
func relay(addr string) int {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, c)
	return 0
}

// long bounds what must happen at all.
const long = 30 * time.Second
