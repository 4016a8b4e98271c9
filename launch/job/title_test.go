package job

import (
	"strings"
	"testing"
)

// Python's options are no scripts, and code is not shown: it may be long, and have secrets in it.
func TestTitleOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"true":                                        "true",
		"bash|-c|python t.py":                         "bash",
		"python":                                      "python",
		"python3|-V":                                  "python3",
		"python3|t.py|-c|x":                           "t.py",
		"python3|-u|-B|t.py":                          "t.py",
		"/usr/bin/python3.12|-c|login = 'abc'":        "/usr/bin/python3.12 -c",
		"python3|-cprint(1)|t.py":                     "python3 -c",
		"python3|-Iuc|print(1)":                       "python3 -c",
		"python3|-c":                                  "python3 -c",
		"python3|-m|pkg.train|t.py":                   "-m pkg.train",
		"python3|-mpkg.train":                         "-m pkg.train",
		"python3|-um|pkg.train":                       "-m pkg.train",
		"python3|-m":                                  "python3",
		"python3|-W|ignore|t.py":                      "t.py",
		"python3|-Wignore|t.py":                       "t.py",
		"python3|-uW|ignore|t.py":                     "t.py",
		"python3|-X|dev|-m|pkg":                       "-m pkg",
		"python3|-Xfrozen_modules=off|t.py":           "t.py",
		"python3|-W|ignore|-c|print(1)":               "python3 -c",
		"python3|-W":                                  "python3",
		"python3|-|t.py":                              "python3",
		"python3|--|t.py":                             "t.py",
		"python3|--":                                  "python3",
		"python3|--help-all|t.py":                     "t.py",
		"python3|--check-hash-based-pycs|always|t.py": "t.py",
	} {
		if got := TitleOf(strings.Split(line, "|")); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// No title has the value of a Secret in it, wherever in the command that stands.
func TestShownTitle(t *testing.T) {
	t.Parallel()
	vars := []Var{{Name: "TOKEN", Value: "swordfish", Secret: true}, {Name: "PLAIN", Value: "train"}}
	for want, c := range map[string]Command{
		"python3 -c":                   {Name: "python3", Args: []string{"-c", "login = 'swordfish'"}},
		"train.py":                     {Name: "python3", Args: []string{"-W", "ignore", "train.py", "swordfish"}},
		"(18 characters, not shown)":   {Name: "python3", Args: []string{"/data/swordfish.py"}},
		"(12 characters, not shown)":   {Name: "python3", Args: []string{"-m", "swordfish"}},
		"(12 characters, not shown)  ": {Kind: Script, Name: "swordfish.py"},
		"(9 characters, not shown)":    {Kind: Module, Name: "swordfish"},
		"torchrun":                     {Name: "/bin/sh", Args: []string{"-c", "exec torchrun swordfish"}, Title: "torchrun"},
		"(14 characters, not shown)":   {Name: "/bin/sh", Title: "swordfish/true"},
	} {
		if got := c.ShownTitle(vars); got != strings.TrimSpace(want) {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}

// A shell quotes a secret that has quotes in it. What holds it there is left out as well.
func TestShownArgsButQuoted(t *testing.T) {
	t.Parallel()
	vars := []Var{{Name: "TOKEN", Value: "sword'fish", Secret: true}}
	got := ShownArgsBut([]string{"/bin/sh", "-c", `exec x 'sword'"'"'fish'`, "--more"}, vars)
	if strings.Contains(got[2], "fish") || got[3] != "--more" {
		t.Errorf("%q", got)
	}
}
