package dialect

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Default ports: of torchrun's c10d rendezvous, and of its static one.
const (
	c10dPort   = 29400
	staticPort = 29500
)

var (
	endpointPort = regexp.MustCompile(`^[0-9]{1,5}$`)
	endpointHost = regexp.MustCompile(`^[\p{L}\p{N}_.:-]+$`)
)

// parseEndpoint reads HOST[:PORT] as torchrun does (PyTorch 2.15.0, elastic/rendezvous/utils.py): IPv6 addresses in
// brackets, the part behind the last colon is the port. port is -1 when there is none.
func parseEndpoint(text string) (host string, port int, err error) {
	text = strings.TrimSpace(text)
	host, port = text, -1
	bracketed := strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]")
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !bracketed {
		host = text[:i]
		digits := text[i+1:]
		port, err = strconv.Atoi(digits)
		if err != nil || !endpointPort.MatchString(digits) || port > 65535 {
			return "", 0, fmt.Errorf("the port %q must be a number from 0 to 65535", digits)
		}
	}
	if len(host) > 1 && strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if !endpointHost.MatchString(host) {
		return "", 0, fmt.Errorf("%q is neither a host name nor an IP address", host)
	}
	return host, port, nil
}

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
	confWhole                    // a whole number
	confFraction                 // a number from 0
	confBool
	confStore
)

// c10dKeys and staticKeys are the settings that the backends of PyTorch 2.15.0 look at. timeout is given to all
// backends; c10d makes nothing of it. rank is overwritten by --node-rank.
func c10dKeys() map[string]confKind {
	return map[string]confKind{
		"join_timeout": confSeconds, "last_call_timeout": confSeconds, "close_timeout": confSeconds,
		"heartbeat_timeout": confSeconds, "read_timeout": confSeconds,
		"keep_alive_interval": confWhole, "keep_alive_max_attempt": confWhole,
		"cas_backoff_max_seconds": confFraction, "is_host": confBool, "store_type": confStore,
	}
}

func staticKeys() map[string]confKind { return map[string]confKind{"timeout": confWhole} }

// checkConf holds the settings of --rdzv-conf against what the backend makes of them. Keys that it does not look at are
// only worth a warning, as torchrun ignores them.
func checkConf(conf map[string]string, backend string) (warnings []string, wrong problems) {
	known, others := c10dKeys(), staticKeys()
	if backend == backendStatic {
		known, others = others, known
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
			warning = fmt.Sprintf("--rdzv-conf: %s has no effect with the %s backend", key, backend)
		} else if near := nearest(key, slices.Sorted(maps.Keys(known))); near != "" {
			warning += fmt.Sprintf("; did you mean %s?", near)
		}
		warnings = append(warnings, warning)
	}
	return warnings, wrong
}

func (k confKind) check(val string) error {
	switch k {
	case confSeconds, confWhole:
		n, err := pyInt(val)
		if err != nil {
			return err
		}
		if k == confSeconds && n <= 0 {
			return errors.New("give seconds above 0")
		}
	case confFraction:
		if f, err := pyFloat(val); err != nil || !(f >= 0) || f > maxSeconds {
			return errors.New("give seconds from 0")
		}
	case confBool:
		on, err := confSwitch(val)
		if err != nil {
			return err
		}
		if !on {
			return errors.New("joining a store that listens elsewhere is not supported yet by this version of muster")
		}
	case confStore:
		switch strings.ToLower(val) {
		case "tcp":
		case "file":
			return errors.New("a store in a file is not supported: leave store_type out")
		default:
			return errors.New("choose tcp")
		}
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
