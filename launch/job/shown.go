package job

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// harmlessNames are patterns of the variables whose values may be shown: where processes of a job are, how libraries
// compute and talk, and where programs lie. What anything else holds nobody knows.
var harmlessNames = []string{
	"PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "MANPATH", "PKG_CONFIG_PATH", "LD_PRELOAD",
	"LD_BIND_NOW", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP",
	"HOSTNAME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "CUDA_HOME", "ROCM_HOME", "PYTHON[A-Z]*", "MALLOC_*",
	"CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "NODE_RANK", "NODE_NUM", "TORCHELASTIC_*", "MUSTER_CKPT_*", "MUSTER_SOCKET",
	"OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "BLIS_*", "VECLIB_*", "RAYON_*", "TOKENIZERS_PARALLELISM",
	"NCCL_*", "RCCL_*", "GLOO_*", "UCX_*", "UCC_*", "FI_*", "IBV_*", "RDMAV_*", "TP_SOCKET_IFNAME", "*_SOCKET_IFNAME",
	"CUDA_*", "NVIDIA_VISIBLE_DEVICES", "*_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_*", "HSA_*", "ROCR_*", "ZE_*", "ASCEND_*", "HCCL_*",
	"CUBLAS_*", "CUDNN_*", "NVTE_*",
	"TORCH_*", "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "PYTORCH_*", "XLA_FLAGS", "TF_CPP_*",
	"ACCELERATE_*", "FSDP_*", "MEGATRON_LM_*", "MIXED_PRECISION", "DEEPSPEED_*", "DS_ACCELERATOR", "DS_BUILD_*", "HOROVOD_*", "DLROVER_*",
	"OMPI_*", "PMI_*", "PMIX_*", "MPI_LOCAL*", "SLURM_PROCID", "SLURM_LOCALID",
	"PADDLE_*", "FLAGS_selected_*", "JAX_*", "TF_CONFIG", "DETERMINISTIC", "PARALLELISM_CONFIG_*", "FP8_*",
}

// harmless reports whether the value of a variable with this name may be shown to everybody.
func harmless(name string) bool {
	return !isSecret(name) && (TellsWorkers(name) || slices.Contains(staleNames, name) || Matches(harmlessNames, name))
}

// secretWords end the words of names whose values are not to be shown, and secretWhole are such words by themselves.
var (
	secretWords = []string{
		"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASS", "PASSPHRASE", "PWD", "KEY",
		"KEYS", "CREDENTIAL", "CREDENTIALS", "CREDS", "COOKIE", "AUTH",
	}
	secretWhole = []string{"PAT", "JWT", "SAS", "SIG", "SIGNATURE", "DSN", "BEARER", "CONNSTR", "PW", "CRED"}
)

// isSecret reports whether a name looks like that of a secret, such as HF_TOKEN or AWS_SECRET_ACCESS_KEY. Values of those
// are never shown.
func isSecret(name string) bool { return secretAmong(name, secretWords) }

func secretAmong(name string, endings []string) bool {
	name = strings.ToUpper(name)
	if name == "PWD" || name == "OLDPWD" {
		return false
	}
	words := strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("_-./:", r) })
	return strings.Contains(name, "SECRET") || strings.Contains(strings.Join(words, ""), "CONNECTIONSTRING") ||
		slices.ContainsFunc(words, func(word string) bool {
			return slices.Contains(secretWhole, word) ||
				slices.ContainsFunc(endings, func(s string) bool { return strings.HasSuffix(word, s) })
		})
}

// secretFlag is Secret for a flag, of which --max-tokens and its like are counts.
func secretFlag(name string) bool {
	return secretAmong(strings.TrimLeft(name, "-+"),
		slices.DeleteFunc(slices.Clone(secretWords), func(s string) bool { return s == "TOKENS" }))
}

// userInURL is what somebody put in front of a URL's host.
var userInURL = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`//[^/@\s]*@`) })

// podReference is a word that is the name of a variable of a pod, and not its value.
var podReference = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\$\([A-Za-z_][\w.-]*\)$`) })

// secretText is what secrets of well-known services look like, and a JSON web token.
var secretText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`eyJ[\w-]{8,}\.[\w-]{4,}|\bgh[pousr]_\w{16,}|github_pat_\w{16,}|\bgl[a-z]*-[\w-]{16,}|\bhf_\w{16,}|\bsk-[\w-]{16,}|` +
			`\bxox[a-z]-[\w-]{8,}|\bA[KS]IA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\bya29\.|-----BEGIN [A-Z ]*PRIVATE|` +
			`(?i:\bbearer\s+\S{8,})|(?i:\bbasic\s+[\w+/]{8,}=*)`)
})

// namedText finds what a text gives names to: as in NAME=VALUE, "name": "value", user=x;password=y, and ?sig=z.
var namedText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z_][\w.-]*)["']?\s*[:=]\s*["']?[^\s"',;&}]`)
})

// secretStarts are how what secretText finds begins; secretSchemes do so in letters of either case.
var (
	secretStarts  = []string{"eyJ", "gh", "gl", "hf_", "sk-", "xox", "AKIA", "ASIA", "AIza", "ya29.", "-----BEGIN"}
	secretSchemes = []string{"bearer", "basic"}
)

// mayMatch reports whether secretText may find something in a text. To compile the expression takes a good part of the
// time in which a job starts, and the texts of most jobs are harmless.
func mayMatch(text string) bool {
	has := func(start string) bool { return strings.Contains(text, start) }
	if slices.ContainsFunc(secretStarts, has) {
		return true
	}
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf { // there are letters outside of ASCII that are the same as one of it but for case
			return true
		}
	}
	text = strings.ToLower(text)
	return slices.ContainsFunc(secretSchemes, has)
}

// holdsSecret reports whether a text looks as if there were a secret in it.
func holdsSecret(text string) bool {
	return mayMatch(text) && secretText().MatchString(text) || strings.ContainsAny(text, ":=") &&
		slices.ContainsFunc(namedText().FindAllStringSubmatch(text, -1), func(found []string) bool { return secretFlag(found[1]) })
}

// hidden stands for a text.
func hidden(text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf("(%d characters, not shown)", utf8.RuneCountInString(text))
}

// Shown is the variable's value as it may be shown: as it is where the variable is known to be harmless, and else how
// long it is. "…" stands for who logs in by a URL.
func (v Var) Shown() string {
	if v.Secret || !harmless(v.Name) || holdsSecret(v.Value) {
		return hidden(v.Value)
	}
	return withoutUser(v.Value)
}

// withoutUser is a text in which "…" stands for who logs in by a URL.
func withoutUser(text string) string {
	if !strings.Contains(text, "//") {
		return text
	}
	return userInURL().ReplaceAllString(text, "//…@")
}

// givesVariable are the words of other launchers and of containers behind which NAME=VALUE sets a variable.
var givesVariable = []string{"-x", "-e", "-env", "--env", "-genv", "--export", "--export-env"}

// ShownArgs is a command line as it may be shown: what stands behind the name of a secret, as in --api-key X, --token=X
// or password=X, or looks like one by itself, is left out, and so is the value of a variable that is not known to be
// harmless.
func ShownArgs(args []string) []string {
	shown := make([]string, len(args))
	secret, variable := false, false // what the word before says of this one
	front := true                    // only NAME=VALUE so far, as a shell sets variables for a command
	for i, arg := range args {
		name, value, named := strings.Cut(arg, "=")
		plain := named && !strings.ContainsAny(name, " \t\n\"'{}?&/:;,")
		env := (variable || front && name == strings.ToUpper(name) || path.Base(args[0]) == "env") && !strings.HasPrefix(arg, "-")
		switch {
		case secret && !strings.HasPrefix(arg, "-") && !podReference().MatchString(arg):
			shown[i] = hidden(arg)
		case plain && env:
			shown[i] = name + "=" + Var{Name: name, Value: value}.Shown()
		case plain && (secretFlag(name) || holdsSecret(value) || !shownWhole(value)):
			shown[i] = name + "=" + hidden(value)
		case holdsSecret(arg) || !shownWhole(arg):
			shown[i] = hidden(arg)
		default:
			shown[i] = withoutUser(arg)
		}
		secret = strings.HasPrefix(arg, "-") && !named && secretFlag(arg)
		variable, front = slices.Contains(givesVariable, arg), front && plain && name == strings.ToUpper(name)
	}
	return shown
}

// leastSecret is the length in bytes from which on the value of a Secret is looked for within words: shorter ones, such
// as "1", stand in many that have nothing to do with it, and are compared with whole words.
const leastSecret = 4

// ShownArgsBut is ShownArgs, in which words that hold the value of one of the variables from Secrets are left out, too.
func ShownArgsBut(args []string, vars []Var) []string {
	shown := ShownArgs(args)
	for i, arg := range args {
		if shown[i] == arg && slices.ContainsFunc(vars, func(v Var) bool { return v.Secret && holds(arg, v.Value) }) {
			shown[i] = hidden(arg)
		}
	}
	return shown
}

// holds reports whether the value of a Secret stands in a word.
func holds(word, secret string) bool {
	if len(secret) < leastSecret {
		return secret != "" && word == secret
	}
	return strings.Contains(word, secret) || strings.Contains(word, strings.ReplaceAll(secret, "'", `'"'"'`)) // in a shell's word
}

// shownWhole reports whether nothing has to be left out of a text of several words, such as arguments for a program. A
// text of one word is shown whole.
func shownWhole(text string) bool {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,;", r) })
	return len(words) < 2 || slices.Equal(ShownArgs(words), words)
}

// ShownText is a text of words as it may be shown: as it is, or how long it is.
func ShownText(text string) string {
	if holdsSecret(text) || !shownWhole(text) {
		return hidden(text)
	}
	return withoutUser(text)
}
