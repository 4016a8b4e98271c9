package convert

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"

	"muster/cmd/dialect"
	"muster/cmd/manifest"
	"muster/internal/errhint"
	"muster/internal/typos"
)

// Settle fills in what follows from other flags of muster manifest, and refuses what is wrong. given are the names of the
// flags that were typed.
func Settle(s *manifest.Spec, given []string) error {
	if !slices.Contains(manifest.Kinds(), s.Kind) {
		err := errhint.Usagef("unknown kind %q: choose one of %s", s.Kind, strings.Join(manifest.Kinds(), ", "))
		if near := typos.Nearest(s.Kind, manifest.Kinds()); near != "" {
			return errhint.With(err, "did you mean "+near+"?")
		}
		return err
	}
	if err := dialect.CheckProcs(s.Procs); err != nil {
		return errhint.Usagef("-n %s: %v", s.Procs, err)
	}
	if n, err := strconv.Atoi(s.Procs); err == nil && !slices.Contains(given, "accelerators") {
		s.Accelerators = n
	} else if err != nil && s.Procs != "cpu" && !slices.Contains(given, "accelerators") {
		return errhint.Usagef("-n %s needs --accelerators: a file says how many accelerators a node has", s.Procs)
	}
	if s.Queue != "" && s.Kind != "slurm" {
		s.Gang = cmp.Or(s.Gang, manifest.DefaultGang(s.Kind))
	}
	return Verify(s, given)
}

// Gang settles who starts the pods of a job together that was read from a file of another kind.
func Gang(s *manifest.Spec) {
	if s.Queue != "" && s.Gang == "" && manifest.Refused(s.Kind, "gang") == "" {
		s.Gang = manifest.DefaultGang(s.Kind)
	}
	if s.Gang == "kueue" && s.Queue == "" {
		s.Gang = ""
	}
}

// Verify refuses flags for which a kind has no use, and a job that would not start.
func Verify(s *manifest.Spec, given []string) error {
	var wrong error
	for _, flag := range given {
		if why := manifest.Refused(s.Kind, flag); why != "" {
			wrong = multierror.Append(wrong, fmt.Errorf("cannot use --%s for %s: %s", flag, s.Kind, why))
		}
	}
	if wrong != nil {
		return errhint.Code(single(wrong), errhint.Usage)
	}
	if err := s.Check(); err != nil {
		return errhint.Code(err, errhint.Usage)
	}
	// What is written is read as the nodes will read it.
	environ, host := manifest.Environ(*s)
	_, err := dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: s.Args(), Environ: environ, Machine: dialect.Machine{Hostname: host}, Dir: "/",
	})
	if err != nil {
		return errhint.Code(fmt.Errorf("cannot write the job: its muster run would be refused: %w", err), errhint.Usage)
	}
	return nil
}

// single is the only error of several, where there is one.
func single(err error) error {
	if list, ok := errors.AsType[*multierror.Error](err); ok && len(list.Errors) == 1 {
		return list.Errors[0]
	}
	return err
}
