package dialect

import (
	"errors"
	"fmt"
	"strings"

	"muster/launch/job"
)

// checkSidecars refuses commands that are none. settleSidecars reads them, because those of weaker sources count, too.
func checkSidecars(_ *Request, text string) error {
	for command := range strings.SplitSeq(text, several) {
		if _, err := sidecarWords(command); err != nil {
			return err
		}
	}
	return nil
}

// sidecarWords are the words of a command that runs beside the workers.
func sidecarWords(text string) ([]string, error) {
	words, err := shellWords(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot split %q into words: %w", job.ShownText(text), err)
	case len(words) == 0 || words[0] == "":
		return nil, errors.New("give a command, such as 'tensorboard --logdir runs --port 6006'")
	}
	return words, nil
}

// settleSidecars takes the commands that run beside the workers, of all sources.
func settleSidecars(r *Request, words *ownWords, wrong *problems) {
	strongest := words.Sidecar.text
	for _, word := range words.Sidecar.pieces() {
		command, err := sidecarWords(word.text)
		switch {
		case err == nil:
			r.Job.Sidecars = append(r.Job.Sidecars, command)
		case !strings.Contains(strongest, word.text): // of that checkSidecars has said it
			wrong.add(fmt.Errorf("cannot use %s: %w", word.written(), err))
		}
	}
	if n := len(r.Job.Sidecars); n > job.MaxSidecars {
		wrong.add(fmt.Errorf("cannot use --sidecar %d times: a job has %d at the most", n, job.MaxSidecars))
	}
}
