package job

// SourceKind says what kind of place a value came from, weakest first.
type SourceKind int

// The kinds of source.
const (
	FromDefault SourceKind = iota
	FromPlatform
	FromConfig
	FromVariable
	FromFlag
	FromMuster // computed by muster: ranks, addresses
	Inherited  // the environment muster was started in
)

// Source says where a value came from.
type Source struct {
	Kind SourceKind
	// Name is the flag, variable, or file and line; a reason for computed values.
	Name string
}

// Sources maps a flag's name to where its value came from.
type Sources map[string]Source

// String says the source in a few words, such as "flag --nproc-per-node" or "default".
func (s Source) String() string {
	switch s.Kind {
	case FromDefault:
		if s.Name == "" || s.Name == "default" {
			return "default"
		}
		return "default: " + s.Name
	case FromPlatform:
		return "platform " + s.Name
	case FromConfig:
		return "config " + s.Name
	case FromVariable:
		return "variable " + s.Name
	case FromFlag:
		return "flag " + s.Name
	case Inherited:
		return "inherited"
	default:
		return "muster: " + s.Name
	}
}
