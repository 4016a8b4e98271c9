package rankmonitor

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"muster/internal/pickle"
)

// The modules of NVRx whose classes messages are of.
const (
	dataModule   = "nvidia_resiliency_ext.fault_tolerance.data"
	configModule = "nvidia_resiliency_ext.fault_tolerance.config"
)

// action is what becomes of a section, by the numbers of NVRx's SectionAction.
type action int64

const (
	sectionOpen action = iota + 1
	sectionClose
	sectionCloseAll
)

// words are the classes that a message may name. Python 3.11.0 to 3.11.3 write a member of an enumeration by its name.
var words = func() (all []*pickle.Class) {
	for _, name := range []string{
		"AuthkeyMsg", "InitMsg", "RankInfo", "HeartbeatMsg", "SectionMsg", "UpdateConfigMsg", "HeartbeatTimeouts", "SectionTimeouts",
	} {
		all = append(all, &pickle.Class{Module: dataModule, Name: name})
	}
	actions := &pickle.Class{Module: dataModule, Name: "SectionAction", Call: func(args pickle.Tuple) (any, error) {
		if len(args) == 1 {
			if n, is := args[0].(int64); is && n >= int64(sectionOpen) && n <= int64(sectionCloseAll) {
				return action(n), nil
			}
		}
		return nil, fmt.Errorf("this is no SectionAction")
	}}
	member := func(args pickle.Tuple) (any, error) {
		if len(args) == 2 && args[0] == any(actions) {
			switch args[1] {
			case any("OPEN"):
				return sectionOpen, nil
			case any("CLOSE"):
				return sectionClose, nil
			case any("CLOSE_ALL"):
				return sectionCloseAll, nil
			}
		}
		return nil, fmt.Errorf("this is no SectionAction")
	}
	return append(all, actions, &pickle.Class{Module: "builtins", Name: "getattr", Call: member})
}()

// The messages of a client.
type (
	authkeyMsg struct{}
	initMsg    struct {
		rank   int
		warmup *int64
	}
	heartbeatMsg struct{}
	sectionMsg   struct {
		name      string
		action    action
		iteration *int64
	}
	updateMsg struct {
		heartbeats *heartbeatLimits
		sections   *sectionLimits
	}
)

// heartbeatLimits and sectionLimits are those that a client has calculated. 0 is no limit.
type (
	heartbeatLimits struct{ first, next time.Duration }
	sectionLimits   struct {
		of      map[string]time.Duration
		outside time.Duration
	}
)

// decode reads a message.
func decode(data []byte) (any, error) {
	v, err := pickle.Read(data, words...)
	if err != nil {
		return nil, err
	}
	o, is := v.(*pickle.Object)
	if !is {
		return nil, fmt.Errorf("it is %s, want a message", pickle.Describe(v))
	}
	f := &fields{of: o}
	var m any
	switch o.Class.Name {
	case "AuthkeyMsg": // for objects that are shared through multiprocessing, which none of these messages holds
		m = authkeyMsg{}
	case "InitMsg":
		info := f.object("rank_info", "RankInfo")
		rank := info.whole("global_rank")
		f.inherit(info)
		if rank == nil || *rank < 0 || *rank > math.MaxInt32 {
			return nil, fmt.Errorf("an InitMsg without a rank")
		}
		m = initMsg{rank: int(*rank), warmup: f.whole("num_warmup_iters")}
	case "HeartbeatMsg":
		m = heartbeatMsg{}
	case "SectionMsg":
		s := sectionMsg{iteration: f.whole("iteration")}
		if s.action, is = f.get("action").(action); !is {
			return nil, fmt.Errorf("a SectionMsg without an action")
		}
		if s.name, is = f.get("section").(string); !is && s.action != sectionCloseAll {
			return nil, fmt.Errorf("a SectionMsg without a section")
		}
		m = s
	case "UpdateConfigMsg":
		m = f.update()
	default:
		return nil, fmt.Errorf("it is %s, want a message", pickle.Describe(v))
	}
	return m, f.err
}

// update reads an UpdateConfigMsg.
func (f *fields) update() updateMsg {
	var m updateMsg
	if h := f.object("hb_timeouts", "HeartbeatTimeouts"); h.of != nil {
		m.heartbeats = &heartbeatLimits{h.seconds(h.get("initial")), h.seconds(h.get("subsequent"))}
		f.inherit(h)
	}
	if s := f.object("section_timeouts", "SectionTimeouts"); s.of != nil {
		m.sections = &sectionLimits{of: map[string]time.Duration{}, outside: s.seconds(s.get("out_of_section"))}
		names, is := s.get("section").(*pickle.Dict)
		if !is {
			s.wrong("SectionTimeouts without sections")
			names = &pickle.Dict{}
		}
		for _, p := range names.Pairs {
			if name, is := p.Key.(string); is {
				m.sections.of[name] = s.seconds(p.Value)
			} else {
				s.wrong("a section's name is %s", pickle.Describe(p.Key))
			}
		}
		f.inherit(s)
	}
	return m
}

// fields reads attributes of an object; nil: there is none, and all are absent. err is the first thing that was wrong.
type fields struct {
	of  *pickle.Object
	err error
}

func (f *fields) wrong(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

func (f *fields) inherit(other *fields) {
	if f.err == nil {
		f.err = other.err
	}
}

func (f *fields) get(name string) any {
	if f.of != nil {
		for _, a := range f.of.Attrs {
			if a.Key == any(name) {
				return a.Value
			}
		}
	}
	return nil
}

func (f *fields) object(name, class string) *fields {
	switch v := f.get(name).(type) {
	case nil:
	case *pickle.Object:
		if v.Class.Name == class {
			return &fields{of: v}
		}
		f.wrong("%s is a %s", name, v.Class.Name)
	default:
		f.wrong("%s is %s", name, pickle.Describe(v))
	}
	return &fields{}
}

// whole is a whole number, nil where there is none.
func (f *fields) whole(name string) *int64 {
	switch v := f.get(name).(type) {
	case nil:
	case int64:
		return &v
	default:
		f.wrong("%s is %s", name, pickle.Describe(v))
	}
	return nil
}

// longest is the longest limit; what is longer is one all the same.
const longest = 100 * 365 * 24 * time.Hour

// seconds is a limit: a positive number, or None for none.
func (f *fields) seconds(v any) time.Duration {
	var s float64
	switch v := v.(type) {
	case nil:
		return 0
	case int64:
		s = float64(v)
	case float64:
		s = v
	default:
		f.wrong("a time-out is %s", pickle.Describe(v))
		return 0
	}
	if !(s > 0) {
		f.wrong("a time-out is %g seconds", s)
		return 0
	}
	return time.Duration(min(s, longest.Seconds()) * float64(time.Second))
}

// instance is an instance of a class of NVRx, made without arguments, whose attributes are set.
type instance struct {
	module, class string
	attrs         []pickle.Pair
}

// member is a member of a Python enumeration.
type member struct {
	module, class string
	value         int64
}

// encode writes an answer as Python's protocol 3, which every Python reads.
func encode(v instance) []byte {
	return append(appendValue([]byte{pickle.OpProto, 3}, v), pickle.OpStop)
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, pickle.OpNone)
	case bool:
		if v {
			return append(b, pickle.OpNewTrue)
		}
		return append(b, pickle.OpNewFalse)
	case int:
		return binary.LittleEndian.AppendUint32(append(b, pickle.OpBinInt), uint32(int32(v)))
	case time.Duration:
		if v == 0 {
			return append(b, pickle.OpNone)
		}
		return appendValue(b, v.Seconds())
	case float64:
		return binary.BigEndian.AppendUint64(append(b, pickle.OpBinFloat), math.Float64bits(v))
	case string:
		b = binary.LittleEndian.AppendUint32(append(b, pickle.OpBinUnicode), uint32(len(v)))
		return append(b, v...)
	case []pickle.Pair:
		b = append(b, pickle.OpEmptyDict, pickle.OpMark)
		for _, p := range v {
			b = appendValue(appendValue(b, p.Key), p.Value)
		}
		return append(b, pickle.OpSetItems)
	case member:
		b = appendClass(b, v.module, v.class)
		b = binary.LittleEndian.AppendUint32(append(b, pickle.OpBinInt), uint32(int32(v.value)))
		return append(b, pickle.OpTuple1, pickle.OpReduce)
	case instance:
		b = append(appendClass(b, v.module, v.class), pickle.OpEmptyTuple, pickle.OpNewObj)
		return append(appendValue(b, v.attrs), pickle.OpBuild)
	}
	panic(fmt.Sprintf("internal error: a %T in an answer", v)) // answers are written in this package alone
}

func appendClass(b []byte, module, class string) []byte {
	return append(append(b, pickle.OpGlobal), module+"\n"+class+"\n"...)
}
