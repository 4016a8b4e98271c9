package checkpointd

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/rs/zerolog"
)

// serveWord makes this test binary an agent: it serves at a socket, with memory in a directory, and follows the lines of
// its standard input.
const serveWord = "serve-checkpoints"

func serveMain(socket, runID, memory string) int {
	s, err := Open(context.Background(),
		Config{Socket: socket, RunID: runID, Workers: 2, Memory: memory, Log: zerolog.New(os.Stderr).Level(zerolog.WarnLevel)})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("serving")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "round":
			s.RoundOver("the test wants it")
		case "drain":
			if err := s.Drain(context.Background()); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		fmt.Println("done")
	}
	if err := s.Close(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
