package dialect

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"muster/cmd/dialect/jobfile"
)

// What becomes of flags of muster run in a pod: reasons why they are left to the cluster, or that they are refused.
const (
	insideRefused = "refused"
	insideMeeting = "how nodes meet in the cluster; here muster starts them, and says it"
	insidePod     = "it is about the pod: give the flag to muster run -f where it is wanted here"
)

// insideRun reads the arguments of muster run that is the command of a job file's pod.
func insideRun(args []string) (list []jobfile.RunFlag, command []string, err error) {
	known := settings()
	flags := nativeFlags(known)
	if command, err = parseFlags(flags, args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, nil, errors.New("it asks for help")
		}
		return nil, nil, flagProblem(err, known)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Changed || f.Name == helpAllFlag || err != nil {
			return
		}
		o := f.Value.(*flagWord).option
		if o.inside == insideRefused {
			err = fmt.Errorf("--%s cannot stand in a pod of a job file", o.name)
			return
		}
		list = append(list, jobfile.RunFlag{Name: o.name, Text: strings.TrimSpace(f.Value.String()), Left: o.inside})
	})
	return list, command, err
}
