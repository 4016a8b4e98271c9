package sshexec

import (
	"context"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/proc"
)

// The defaults of Config, and what is not configured.
const (
	defaultConnectTimeout = 10 * time.Second
	defaultAnswerTimeout  = time.Minute
	aliveEvery            = 15 * time.Second
	aliveMisses           = 4
	uploadsAtOnce         = 8
)

// Config says how machines are reached. What it leaves open is read from ssh's configuration.
type Config struct {
	// Program takes ssh's arguments and is used in place of our own client, with arguments of its own, such as {"ssh",
	// "-q"}. One whose name begins with "kubexec" gets the host and the command alone.
	Program []string
	// User, Port and Identity (the path of a private key) hold for machines that say nothing else.
	User     string
	Port     int
	Identity string
	// HostKeys is "accept-new", "strict" or "off". Empty: what StrictHostKeyChecking of the configuration says, and
	// "accept-new" where that is to ask. Nothing is checked, nor written down, with "off".
	HostKeys string
	// Options are options as ssh's -o takes them, "Name=value". Without Program, those that our own client does not
	// have are refused.
	Options []string

	// Home is where .ssh is, and Env the environment, in which SSH_AUTH_SOCK is looked up.
	Home string
	Env  func(string) (string, bool)
	// Environ is the whole environment of programs that are started here: Program, a ProxyCommand, and ssh, which is
	// asked about a configuration that has conditions. Tree starts them. Without one there is neither Program nor
	// ProxyCommand.
	Environ []string
	Tree    *proc.Tree

	// Binary is the file of our own program, which is sent to machines that do not have it: /proc/self/exe.
	Binary string
	// Version is the first line that it prints when asked for its version. A muster in the PATH of a machine of another
	// kind is used if it says the same. Empty: such machines are refused.
	Version string

	// ConnectTimeout bounds a connection; a login may take three times as long. Default: the configuration's, else 10
	// s.
	ConnectTimeout time.Duration
	// AnswerTimeout bounds how long a machine that let us in takes for the first answer, or for the next part of our
	// binary: its login files may wait for a slow file system. Default 1 min.
	AnswerTimeout time.Duration
	// Alive is how often the other side is asked for a sign of life. When it missed four, the connection is lost.
	// Default: the configuration's ServerAliveInterval and ServerAliveCountMax, else 15 s.
	Alive time.Duration

	Log zerolog.Logger
}

// Dialer reaches machines. Its methods may be called by several goroutines at once.
type Dialer struct {
	cfg      Config
	log      zerolog.Logger
	options  map[string][]string
	files    *configFiles
	hostKeys *hostKeys
	payload  *payload
	me       string // this user
	uid      int
	thisHost string
	uploads  chan struct{} // bounds them

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	mu   sync.Mutex
	hops map[string]*hop // jump hosts, by the way to them
}

// New checks what was configured. Errors have the status for wrong usage.
func New(cfg Config) (*Dialer, error) {
	switch cfg.HostKeys {
	case "", "accept-new", "strict", "off":
	default:
		return nil, errhint.Usagef("cannot treat unknown ssh host keys as %q: choose accept-new, strict or off", cfg.HostKeys)
	}
	if cfg.Port < 0 || cfg.Port > 65535 {
		return nil, errhint.Usagef("cannot use port %d for ssh: it must be from 1 to 65535", cfg.Port)
	}
	options, err := parseOptions(cfg.Options, len(cfg.Program) > 0)
	if err != nil {
		return nil, err
	}
	if cfg.Identity != "" {
		if _, err := os.Stat(cfg.Identity); err != nil {
			return nil, errhint.Usagef("cannot use the ssh key %s: %v", cfg.Identity, err)
		}
	}
	if cfg.Env == nil {
		cfg.Env = func(string) (string, bool) { return "", false }
	}
	if cfg.AnswerTimeout == 0 {
		cfg.AnswerTimeout = defaultAnswerTimeout
	}
	d := &Dialer{
		cfg: cfg, log: cfg.Log, options: options, hostKeys: &hostKeys{log: cfg.Log}, payload: newPayload(cfg.Binary), uid: os.Getuid(),
		uploads: make(chan struct{}, uploadsAtOnce), hops: map[string]*hop{},
	}
	d.me = d.userName()
	d.thisHost, _ = os.Hostname() // for a token of ssh's configuration that few use
	var ask func(context.Context, []string, string) (string, error)
	if len(cfg.Program) > 0 {
		if cfg.Tree == nil {
			return nil, errhint.Usagef("cannot use the ssh program %s: no programs can be started here", cfg.Program[0])
		}
		if _, err := d.programPath(); err != nil {
			return nil, err
		}
	} else if path := d.opensshClient(); path != "" {
		ask = func(ctx context.Context, args []string, stdin string) (string, error) {
			return d.output(ctx, path, args, stdin)
		}
	}
	d.files = newConfigFiles(cfg.Home, cfg.Log, ask)
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// userName is who runs us. The list of users need not have a container's user.
func (d *Dialer) userName() string {
	if u, err := user.LookupId(strconv.Itoa(d.uid)); err == nil {
		return u.Username
	}
	for _, name := range []string{"LOGNAME", "USER"} {
		if v, ok := d.cfg.Env(name); ok && v != "" {
			return v
		}
	}
	return ""
}

// opensshClient returns the path of ssh where it can be started.
func (d *Dialer) opensshClient() string {
	if d.cfg.Tree == nil {
		return ""
	}
	path, err := proc.LookPath("ssh", "", d.cfg.Environ)
	if err != nil {
		return ""
	}
	return path
}

// Start logs in at a machine and starts our binary there with args, which are constant words: they pass a shell, and
// the list of processes shows them. ctx bounds the start alone; Close of what it returns ends the rest. Errors carry a
// hint and an exit status; see Transient.
func (d *Dialer) Start(ctx context.Context, h hosts.Host, args []string) (*Remote, error) {
	l, err := d.link(ctx, h)
	if err != nil {
		return nil, err
	}
	r, err := d.boot(ctx, l, args)
	if err != nil {
		l.close()
		return nil, err
	}
	return r, nil
}

// link reaches a machine in the configured way.
func (d *Dialer) link(ctx context.Context, h hosts.Host) (link, error) {
	if len(d.cfg.Program) > 0 {
		return d.programLink(ctx, h)
	}
	s, err := d.resolve(ctx, h, false)
	if err != nil {
		return nil, err
	}
	c, err := d.connect(ctx, s)
	if err != nil {
		return nil, err
	}
	return &sshLink{c}, nil
}

// Close ends the connections to jump hosts, and with them what goes through them.
func (d *Dialer) Close() error {
	d.stop()
	d.mu.Lock()
	hops := d.hops
	d.hops = nil
	d.mu.Unlock()
	for _, h := range hops {
		<-h.ready
		if h.conn != nil {
			h.conn.close(nil)
		}
	}
	return nil
}
