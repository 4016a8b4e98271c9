package job

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// jwt is a JSON web token, sas a shared access signature and dsn a connection string, as people have them in variables.
const (
	jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2hunter2"
	sas = "https://store.blob.example.com/data?sv=2024-01-01&sp=r&sig=hunter2%3D"
	dsn = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=hunter2=="
)

func TestShown(t *testing.T) {
	for _, name := range []string{
		"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "MYSQL_PWD", "apikey", "SECRETKEYBASE", "GIT_AUTH", "SSL_KEYS",
		"GH_PAT", "SESSION", "ID_JWT",
		"DATABASE_URL", "WEBHOOK_PATH", "FOO", "AZURE_CONNECTION_STRING", "HOROVOD_SECRET_KEY", "SLURM_JWT", "NCCL_TOKEN", "MUSTER_ENV",
		"OMP_PASSWORD", "",
	} {
		if harmless(name) {
			t.Errorf("%s counts as harmless", name)
		}
		if got := (Var{Name: name, Value: "hünter2"}).Shown(); got != "(7 characters, not shown)" {
			t.Errorf("%s is shown as %s", name, got)
		}
		if got := (Var{Name: name}).Shown(); got != "" {
			t.Errorf("%s without a value is shown as %s", name, got)
		}
	}
	for _, name := range []string{
		"RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG",
		"GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES",
		"HIP_VISIBLE_DEVICES", "HOROVOD_RANK", "ACCELERATE_MIXED_PRECISION", "OMPI_COMM_WORLD_RANK", "TOKENIZERS_PARALLELISM", "PWD",
	} {
		if got := (Var{Name: name, Value: "seen"}).Shown(); got != "seen" {
			t.Errorf("%s is shown as %s", name, got)
		}
		for _, secret := range []string{jwt, sas, dsn, "Bearer hunter2hunter2", "user=me;password=hunter2"} {
			if got := (Var{Name: name, Value: secret}).Shown(); strings.Contains(got, "hunter2") {
				t.Errorf("%s is shown as %s", name, got)
			}
		}
	}
	if got := (Var{Name: "NCCL_URL", Value: "http://me:pw@h/p"}).Shown(); got != "http://…@h/p" {
		t.Error(got)
	}
}

func TestShownArgs(t *testing.T) {
	for line, want := range map[string]string{
		"python|train.py|--lr|0.1|--steps=5":                      "",
		"t.py|--max-tokens|512|--max_tokens=512|--tokenizer|bert": "",
		"t.py|--api-key|hunter2|--lr|1":                           "t.py|--api-key|(7 characters, not shown)|--lr|1",
		"t.py|--api-key|--lr|1":                                   "",
		"t.py|--pw=hunter2|--cred|hunter2":                        "t.py|--pw=(7 characters, not shown)|--cred|(7 characters, not shown)",
		"t.py|--token=hunter2":                                    "t.py|--token=(7 characters, not shown)",
		"t.py|-password=hunter2":                                  "t.py|-password=(7 characters, not shown)",
		"t.py|trainer.wandb.api_key=hunter2|+a.b=c":               "t.py|trainer.wandb.api_key=(7 characters, not shown)|+a.b=c",
		"t.py|--auth|" + jwt:                                      "t.py|--auth|(59 characters, not shown)",
		"t.py|" + jwt:                                             "t.py|(59 characters, not shown)",
		"t.py|--data=" + sas:                                      "t.py|--data=(69 characters, not shown)",
		"t.py|--store|" + dsn:                                     "t.py|--store|DefaultEndpointsProtocol=(41 characters, not shown)",
		"t.py|--db=postgres://me:hunter2@db/x":                    "t.py|--db=postgres://…@db/x",
		"t.py|--json|{\"a\": 1, \"api_key\": \"hunter2\"}":        "t.py|--json|(30 characters, not shown)",
		"env|FOO=hunter2|NCCL_DEBUG=INFO|python|t.py":             "env|FOO=(7 characters, not shown)|NCCL_DEBUG=INFO|python|t.py",
		"sh|-c|FOO=1 API_KEY=hunter2 python t.py":                 "sh|-c|FOO=(29 characters, not shown)",
		"sh|-c|FOO=hunter2 A=b python t.py --c=d":                 "sh|-c|(33 characters, not shown)",
		"sh|-c|python t.py --lr 1":                                "",
		"docker|run|-e|FOO=hunter2|--env|BAR=hunter2|-x|A=hunter2": "docker|run|-e|FOO=(7 characters, not shown)|--env|BAR=(7 " +
			"characters, not shown)|-x|A=(7 characters, not shown)",
		"sh|-c|mpirun -x FOO=hunter2 prog":                       "sh|-c|(26 characters, not shown)",
		"t.py|--header|Authorization: Bearer hunter2hunter2":     "t.py|--header|(36 characters, not shown)",
		"t.py|sk-hunter2hunter2hunter2|hf_hunter2hunter2hunter2": "t.py|(24 characters, not shown)|(24 characters, not shown)",
		"t.py|AKIAHUNTER2HUNTER2|ghp_hunter2hunter2hunter2":      "t.py|(18 characters, not shown)|(25 characters, not shown)",
	} {
		if want == "" {
			want = line
		}
		if got := strings.Join(ShownArgs(strings.Split(line, "|")), "|"); got != want {
			t.Errorf("%s is shown as\n%s, and not as\n%s", line, got, want)
		}
	}
	if got := ShownArgs(nil); len(got) != 0 {
		t.Error(got)
	}
}

func TestShownText(t *testing.T) {
	for _, text := range []string{"-x FOO=hunter2", "read_timeout=5,password=hunter2", "--api-key hunter2", jwt, "a " + dsn} {
		if got := ShownText(text); strings.Contains(got, "hunter2") || !strings.HasSuffix(got, " characters, not shown)") {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	for _, text := range []string{
		"", "10.0.0.1:29400", "echo rank $RANK of $WORLD_SIZE", "/run/secrets/token", "node[001-004]", "a=1,b=2",
		"-x NCCL_DEBUG=INFO",
	} {
		if got := ShownText(text); got != text {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}

// TestMayMatch: nothing that the expression for secrets finds is passed over before it is asked.
func TestMayMatch(t *testing.T) {
	t.Parallel()
	const long = "abcdefgh01234567890123"
	secrets := []string{
		jwt, "eyJ" + long + "." + long, "gho_" + long, "ghp_" + long, "github_pat_" + long, "glpat-" + long, "gl-" + long, "hf_" + long,
		"sk-" + long, "xoxb-" + long, "AKIA0123456789ABCDEF", "ASIA0123456789ABCDEF", "AIza" + long, "ya29.", "-----BEGIN PRIVATE",
		"-----BEGIN RSA PRIVATE KEY-----", "Bearer " + long, "BEARER\t" + long, "bEaReR " + long, "basic " + long + "==",
		"ba\u017fic " + long,
	}
	for _, secret := range secrets {
		if !secretText().MatchString(secret) {
			t.Errorf("%q is no secret", secret)
		}
	}
	for _, text := range []string{"", "2", "standalone", "SIGTERM,SIGINT,SIGHUP", "127.0.0.1:29400", "/scratch/train.py"} {
		if mayMatch(text) {
			t.Errorf("the expression is compiled for %q", text)
		}
	}
	pieces := append(slices.Clone(secrets), " ", "x", "_", "-", ".", "0", "A", "é", "bearer", "basic", "gh", "eyJ", "\n", long)
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var text string
		for range 1 + r.IntN(4) {
			piece := pieces[r.IntN(len(pieces))]
			text += piece[r.IntN(len(piece)):]
		}
		if secretText().MatchString(text) && !mayMatch(text) {
			t.Fatalf("%q is passed over", text)
		}
	}
}
