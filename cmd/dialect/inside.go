package dialect

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"muster/cmd/dialect/jobfile"
)

// Reasons why flags of muster run in a pod are left to the cluster.
const (
	insideMeeting = "how nodes meet in the cluster; here muster starts them, and says it"
	insidePod     = "it is about the pod: give the flag to muster run -f where it is wanted here"
)

// insideLeft are the flags of muster run in a pod that have no meaning where its nodes run elsewhere.
var insideLeft = map[string]string{
	"nnodes": insideMeeting, "node-rank": insideMeeting, "master-addr": insideMeeting, "master-port": insideMeeting,
	"rdzv": insideMeeting, "rdzv-conf": insideMeeting, "run-id": insideMeeting, "local-addr": insideMeeting, "iface": insideMeeting,
	"platform": insideMeeting, "token-file": insideMeeting,
	"http": insidePod, "ckpt-on-file": insidePod, "status-file": insidePod, "json": insidePod, "log-format": insidePod, "log-level": insidePod,
}

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
		name := f.Annotations[flagAnnotation][0]
		switch name {
		case "job-file", "hosts", "hostfile", "simulate-nodes", "config", "dry-run":
			err = fmt.Errorf("--%s cannot stand in a pod of a job file", name)
			return
		}
		list = append(list, jobfile.RunFlag{Name: name, Text: strings.TrimSpace(f.Value.String()), Left: insideLeft[name]})
	})
	return list, command, err
}
