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

// confKeys are the settings of the static and c10d backends of PyTorch 2.15.0.
var confKeys = map[string]confKind{
	"join_timeout": confSeconds, "last_call_timeout": confSeconds, "close_timeout": confSeconds,
	"heartbeat_timeout": confSeconds, "read_timeout": confSeconds, "timeout": confWhole, "rank": confWhole,
	"keep_alive_interval": confWhole, "keep_alive_max_attempt": confWhole,
	"cas_backoff_max_seconds": confFraction, "is_host": confBool, "store_type": confStore,
}

// checkConf holds the settings of --rdzv-conf against what the backend makes of them. Unknown keys are only worth a
// warning, as torchrun ignores them.
func checkConf(conf map[string]string, backend string) (warnings []string, wrong problems) {
	for _, key := range slices.Sorted(maps.Keys(conf)) {
		val := conf[key]
		k, known := confKeys[key]
		switch {
		case !known:
			warning := fmt.Sprintf("--rdzv-conf: the key %q is unknown and ignored", key)
			if near := nearest(key, slices.Sorted(maps.Keys(confKeys))); near != "" {
				warning += fmt.Sprintf("; did you mean %s?", near)
			}
			warnings = append(warnings, warning)
			continue
		case key == "timeout" && backend != "static":
			warnings = append(warnings, "--rdzv-conf: timeout has no effect with the c10d backend; join_timeout has")
		case key == "rank":
			warnings = append(warnings, "--rdzv-conf: rank is ignored, --node-rank counts")
		}
		if err := k.check(val); err != nil {
			wrong.add(fmt.Errorf("cannot use --rdzv-conf %s=%s: %w", key, val, err))
		}
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
