package dialect

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/launch/job"
)

// parseConf reads KEY=VALUE,... as torchrun does. Later keys win.
func parseConf(text string) (map[string]string, error) {
	conf := map[string]string{}
	if strings.TrimSpace(text) == "" {
		return conf, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		key, val, _ := strings.Cut(item, "=")
		key, val = strings.TrimSpace(key), strings.TrimSpace(val)
		if key == "" {
			return nil, errors.New("write it as <key1>=<value1>,...,<keyN>=<valueN>")
		}
		if val == "" {
			return nil, fmt.Errorf("the key %q must have a value", key)
		}
		conf[key] = val
	}
	return conf, nil
}

type confKind int

const (
	confSeconds  confKind = iota // a whole number above 0
	confCount                    // the same, of something else
	confWhole                    // a whole number
	confFraction                 // a number from 0
	confBool
	confStore
	confProtocol
	confText
)

// confKeys are the settings that the job's dialect looks at: DLRover has a few more, and its own name for the last
// call.
func confKeys(job *job.Job) map[string]confKind {
	keys := backendKeys(job.Meeting.Backend)
	if job.Dialect == dlroverRun {
		maps.Copy(keys, map[string]confKind{"lastcall_timeout": confSeconds, "pend_timeout": confFraction, "node_unit": confCount})
	}
	return keys
}

// backendKeys are the settings that the backends of PyTorch 2.15.0 look at. timeout is given to all backends; c10d
// makes nothing of it. rank is overwritten by --node-rank. etcd and etcd-v2 have names of their own for the same files;
// here either backend's are taken.
func backendKeys(backend string) map[string]confKind {
	shared := map[string]confKind{
		"join_timeout": confSeconds, "last_call_timeout": confSeconds, "close_timeout": confSeconds,
		"heartbeat_timeout": confSeconds, "read_timeout": confSeconds,
		"keep_alive_interval": confWhole, "keep_alive_max_attempt": confWhole,
	}
	switch backend {
	case backendStatic:
		return map[string]confKind{"timeout": confWhole}
	case backendEtcd:
		maps.Copy(shared, map[string]confKind{
			"timeout": confWhole, "protocol": confProtocol, "etcd_prefix": confText,
			"ssl_cert": confText, "ssl_cert_key": confText, "ca_cert": confText, "cert": confText, "key": confText, "cacert": confText,
		})
	default:
		maps.Copy(shared, map[string]confKind{"cas_backoff_max_seconds": confFraction, "is_host": confBool, "store_type": confStore})
	}
	return shared
}

// checkConf holds the settings of --rdzv-conf against what the backend makes of them. Keys that it does not look at are
// only worth a warning, as torchrun ignores them.
func checkConf(conf map[string]string, job *job.Job) (warnings []string, wrong problems) {
	known, others := confKeys(job), map[string]confKind{}
	for _, b := range []string{backendStatic, backendC10d, backendEtcd} {
		maps.Copy(others, backendKeys(b))
	}
	for _, key := range slices.Sorted(maps.Keys(conf)) {
		k, ok := known[key]
		if ok {
			if err := k.check(conf[key]); err != nil {
				wrong.add(fmt.Errorf("cannot use --rdzv-conf %s=%s: %w", key, conf[key], err))
			}
			continue
		}
		warning := fmt.Sprintf("--rdzv-conf: the key %q is unknown and ignored", key)
		if _, elsewhere := others[key]; elsewhere {
			warning = fmt.Sprintf("--rdzv-conf: %s has no effect with the %s backend", key, job.Meeting.Backend)
		} else if near := nearest(key, slices.Sorted(maps.Keys(known))); near != "" {
			warning += fmt.Sprintf("; did you mean %s?", near)
		}
		warnings = append(warnings, warning)
	}
	return warnings, wrong
}

func (k confKind) check(val string) error {
	switch k {
	case confSeconds, confCount, confWhole:
		n, err := pyInt(val)
		if err != nil {
			return err
		}
		if k == confSeconds && n <= 0 {
			return errors.New("give seconds above 0")
		}
		if k == confCount && n <= 0 {
			return errors.New("give a number above 0")
		}
	case confFraction:
		if f, err := pyFloat(val); err != nil || !(f >= 0) || f > maxSeconds {
			return errors.New("give seconds from 0")
		}
	case confBool:
		_, err := confSwitch(val)
		return err
	case confStore:
		switch strings.ToLower(val) {
		case "tcp":
		case "file":
			return errors.New("a store in a file is not supported: leave store_type out")
		default:
			return errors.New("choose tcp")
		}
	case confProtocol:
		return oneOf(val, "http", "https")
	case confText:
	}
	return nil
}

func confSwitch(val string) (bool, error) {
	switch strings.ToLower(val) {
	case "1", "true", "t", "yes", "y":
		return true, nil
	case "0", "false", "f", "no", "n":
		return false, nil
	}
	return false, errors.New("give true or false")
}

// equivalentKeys are the keys of --rdzv-conf that say the same as a setting of muster, strongest first.
var equivalentKeys = []struct {
	of   func(*ownWords) *value
	keys []string
}{
	{func(w *ownWords) *value { return &w.JoinTimeout }, []string{"join_timeout", "timeout"}},
	{func(w *ownWords) *value { return &w.LastCall }, []string{"last_call_timeout", "lastcall_timeout"}},
	{func(w *ownWords) *value { return &w.KeepAlive }, []string{"keep_alive_interval"}},
	{func(w *ownWords) *value { return &w.NodeUnit }, []string{"node_unit"}},
	{func(w *ownWords) *value { return &w.EtcdCACert }, []string{"cacert", "ca_cert"}},
	{func(w *ownWords) *value { return &w.EtcdCert }, []string{"cert", "ssl_cert"}},
	{func(w *ownWords) *value { return &w.EtcdKey }, []string{"key", "ssl_cert_key"}},
}

// applyConf puts the settings of --rdzv-conf into the job's meeting, whose backend is known, and gathers what is wrong
// with them. It adds the values that muster's own settings have through them to equivalents. word is what was given.
func applyConf(job *job.Job, word value, equivalents *ownWords, wrong *problems) {
	m := &job.Meeting
	m.Conf = map[string]string{}
	conf, err := parseConf(word.text)
	if err != nil {
		wrong.add(fmt.Errorf("cannot use %s: %w", word.written(), err))
		return
	}
	m.Conf = conf
	warnings, bad := checkConf(conf, job)
	job.Warnings = append(job.Warnings, warnings...)
	wrong.merge(bad)

	known := confKeys(job)
	for _, e := range equivalentKeys {
		first := value{}
		for _, key := range e.keys {
			val, ok := conf[key]
			if _, looked := known[key]; !ok || !looked {
				continue
			}
			if first.given {
				if known[key] == confText && first.text != val {
					wrong.add(fmt.Errorf("cannot use %s and %s=%s together: they name different files", first.source.Name, key, val))
				}
				continue
			}
			source := word.source
			source.Name += " " + key
			first.say(val, source)
			e.of(equivalents).say(val, source)
		}
	}
	seconds := func(to *time.Duration, key string) {
		if _, looked := known[key]; !looked {
			return
		}
		if n, err := pyInt(conf[key]); err == nil && n > 0 {
			*to = time.Duration(min(n, maxSeconds)) * time.Second
		}
	}
	seconds(&m.JoinTimeout, "timeout")
	seconds(&m.JoinTimeout, "join_timeout")
	seconds(&m.LastCall, "lastcall_timeout")
	seconds(&m.LastCall, "last_call_timeout")
	seconds(&m.CloseTimeout, "close_timeout")
	seconds(&m.ReadTimeout, "read_timeout")
	seconds(&m.HeartbeatTimeout, "heartbeat_timeout")
	seconds(&m.KeepAlive, "keep_alive_interval")
	if n, err := pyInt(conf["node_unit"]); err == nil && n > 0 && job.Dialect == dlroverRun {
		m.NodeUnit = n
	}
	if n, err := pyInt(conf["keep_alive_max_attempt"]); err == nil && n > 0 && m.Backend != backendStatic {
		m.KeepAliveAttempts = n
	}
	if on, err := confSwitch(conf["is_host"]); err == nil && known["is_host"] == confBool {
		m.IsHost = &on
	}
	if m.Backend == backendEtcd {
		m.Etcd.CACert, m.Etcd.Cert, m.Etcd.CertKey = equivalents.EtcdCACert.text, equivalents.EtcdCert.text, equivalents.EtcdKey.text
		m.Etcd.TLS = m.Etcd.TLS || conf["protocol"] == "https"
		if prefix := conf["etcd_prefix"]; prefix != "" {
			m.Etcd.Prefix = strings.TrimSuffix(prefix, "/") + "/"
		}
	}
}

// checkConfTimes refuses numbers that torchrun takes and that no meeting of several nodes can work with.
func checkConfTimes(m *job.Meeting, wrong *problems) {
	for _, key := range []string{"keep_alive_interval", "keep_alive_max_attempt", "timeout"} {
		val, ok := m.Conf[key]
		if _, looked := backendKeys(m.Backend)[key]; !ok || !looked {
			continue
		}
		if n, err := pyInt(val); err == nil && n <= 0 {
			wrong.add(fmt.Errorf("cannot use --rdzv-conf %s=%s: give a number above 0", key, strconv.Itoa(n)))
		}
	}
}
