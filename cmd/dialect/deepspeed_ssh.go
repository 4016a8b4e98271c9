package dialect

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

// sshArgs reads what pdsh and the ssh below it were to be told: --launcher_args, and the variables that pdsh adds to
// ssh's arguments.
func (d *deepSpeedJob) sshArgs() {
	rules := &d.job.Hosts.SSH
	words, err := shellWords(d.w.launcherArgs.text)
	switch {
	case err != nil:
		d.refuse(&d.w.launcherArgs, err)
	case d.mpi != nil && len(words) > 0:
		d.refuse(&d.w.launcherArgs, fmt.Errorf("they are for %s, which muster does not run: leave them out", d.mpi.name))
	default:
		d.refuse(&d.w.launcherArgs, pdshArgs(rules, words))
	}
	for _, name := range []string{"PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND"} {
		words, err := shellWords(d.env[name])
		if err == nil {
			err = sshWords(rules, words)
		}
		if err != nil {
			d.wrong.add(fmt.Errorf("cannot use %s=%s: %w", name, d.env[name], err))
		}
	}
	if port := d.w.sshPort; !port.none {
		rules.Port = port.n // pdsh puts it behind all others
	}
}

// pdshArgs reads arguments of pdsh.
func pdshArgs(rules *job.SSHRules, words []string) error {
	return eachLetter(words, "lfutRwxg", func(letter byte, word string) error {
		switch letter {
		case 'l':
			rules.User = word
		case 'f':
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 {
				return fmt.Errorf("-f %q: give a number above 0", word)
			}
			rules.Parallel = n
		case 't':
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 {
				return fmt.Errorf("-t %q: give seconds above 0", word)
			}
			rules.Options = append(rules.Options, "ConnectTimeout="+word)
		case 'S', 'b', 'N': // the status, Ctrl-C and labels are muster's own affair
		case 'R':
			if word != "ssh" {
				return fmt.Errorf("-R %s: hosts are reached by ssh", word)
			}
		case 'u':
			return errhint.With(errors.New("-u bounds the time of a command"), "put --active-deadline in front of deepspeed")
		case 'w', 'x', 'g':
			return errhint.With(fmt.Errorf("-%c chooses hosts", letter), "use --include, --exclude or --num_nodes")
		default:
			return fmt.Errorf("-%c of pdsh has no meaning here: muster reaches the hosts itself", letter)
		}
		return nil
	})
}

// sshWords reads arguments of ssh.
func sshWords(rules *job.SSHRules, words []string) error {
	return eachLetter(words, "pliFJoE", func(letter byte, word string) error {
		switch letter {
		case 'p':
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 || n > 65535 {
				return fmt.Errorf("-p %q: give a number from 1 to 65535", word)
			}
			rules.Port = n
		case 'l':
			rules.User = word
		case 'i':
			rules.Identity = word
		case 'J':
			rules.Options = append(rules.Options, "ProxyJump="+word)
		case 'o':
			name, value, ok := strings.Cut(word, "=")
			if !ok {
				name, value, ok = strings.Cut(word, " ")
			}
			if !ok {
				return fmt.Errorf("-o %q is not of the form Name=value", word)
			}
			rules.Options = append(rules.Options, strings.TrimSpace(name)+"="+strings.TrimSpace(value))
		case '4':
			rules.Options = append(rules.Options, "AddressFamily=inet")
		case '6':
			rules.Options = append(rules.Options, "AddressFamily=inet6")
		case 'A':
			rules.Options = append(rules.Options, "ForwardAgent=yes")
		case 'C':
			rules.Options = append(rules.Options, "Compression=yes")
		case 'q', 'T', 'a', 'x', '2', 'k', 'n': // of the terminal, of what is forwarded by itself, of how much ssh says
		default:
			return fmt.Errorf("-%c of ssh has no meaning here", letter)
		}
		return nil
	})
}

// eachLetter calls use for every one-letter option; those in withWord take a word.
func eachLetter(words []string, withWord string, use func(letter byte, word string) error) error {
	for i := 0; i < len(words); i++ {
		text := words[i]
		if len(text) < 2 || text[0] != '-' || text[1] == '-' {
			return fmt.Errorf("%q is no option that has a meaning here", text)
		}
		for at := 1; at < len(text); at++ {
			letter, word := text[at], ""
			if strings.IndexByte(withWord, letter) >= 0 {
				if word, at = text[at+1:], len(text); word == "" {
					if i++; i == len(words) {
						return fmt.Errorf("-%c lacks its value", letter)
					}
					word = words[i]
				}
			}
			if err := use(letter, word); err != nil {
				return err
			}
		}
	}
	return nil
}

// shellWords splits a text as Python's shlex.split does, which knows a shell's quotes and backslashes and nothing else.
func shellWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	begun := false
	quote := byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == '\'' && c != '\'', quote == '"' && c != '"' && c != '\\':
			word.WriteByte(c)
		case quote == c && quote != 0:
			quote = 0
		case c == '\\':
			if i++; i == len(text) {
				return nil, errors.New("it ends with a backslash")
			}
			if quote == '"' && text[i] != '"' && text[i] != '\\' {
				word.WriteByte(c)
			}
			word.WriteByte(text[i])
			begun = true
		case c == '\'' || c == '"':
			quote, begun = c, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c is not closed", quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
