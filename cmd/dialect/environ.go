package dialect

import "strings"

// environ looks names up in an environment.
type environ map[string]string

func newEnviron(entries []string) environ {
	env := make(environ, len(entries))
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		if _, twice := env[name]; ok && !twice {
			env[name] = value
		}
	}
	return env
}

// has reports whether there is a variable whose name begins with prefix.
func (e environ) has(prefix string) bool {
	for name := range e {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// variable returns the name of the environment variable that stands for a flag: prefix and the flag's name in upper
// case with underscores.
func variable(prefix, flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Prefixes of the variables that stand for flags.
const (
	ownPrefix = "MUSTER_"
	petPrefix = "PET_" // torchrun's; the letters come from its former name, PyTorch Elastic Trainer
)
