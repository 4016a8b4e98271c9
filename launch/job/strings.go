package job

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// plainJob and plainCommand are without methods.
type (
	plainJob     Job
	plainCommand Command
)

type jsonJob struct {
	*plainJob
	Environ Strings
}

type jsonCommand struct {
	*plainCommand
	Args Strings
}

// MarshalJSON writes a job so that its environment arrives byte for byte.
func (j Job) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonJob{(*plainJob)(&j), j.Environ})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (j *Job) UnmarshalJSON(data []byte) error {
	in := jsonJob{plainJob: (*plainJob)(j)}
	err := json.Unmarshal(data, &in)
	j.Environ = in.Environ
	return err
}

// MarshalJSON writes a command so that its arguments arrive byte for byte.
func (c Command) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonCommand{(*plainCommand)(&c), c.Args})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Command) UnmarshalJSON(data []byte) error {
	in := jsonCommand{plainCommand: (*plainCommand)(c)}
	err := json.Unmarshal(data, &in)
	c.Args = in.Args
	return err
}

// Strings are texts that may hold any bytes, as arguments and environments do. JSON has them as strings, and as an
// object {"bytes": "<base64>"} where they are not UTF-8, so that a job arrives on another machine byte for byte.
type Strings []string

// anyBytes is one of them.
type anyBytes string

type encodedBytes struct {
	Bytes []byte `json:"bytes"`
}

// MarshalJSON writes the texts.
func (s Strings) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	list := make([]anyBytes, len(s))
	for i, text := range s {
		list[i] = anyBytes(text)
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Strings) UnmarshalJSON(data []byte) error {
	var list []anyBytes
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	*s = nil
	if list != nil {
		*s = make(Strings, len(list))
	}
	for i, text := range list {
		(*s)[i] = string(text)
	}
	return nil
}

func (b anyBytes) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(b)) {
		return json.Marshal(string(b))
	}
	return json.Marshal(encodedBytes{[]byte(b)})
}

func (b *anyBytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var e encodedBytes
		err := json.Unmarshal(data, &e)
		*b = anyBytes(e.Bytes)
		return err
	}
	return json.Unmarshal(data, (*string)(b))
}

// jsonVar is a Var as JSON has it.
type jsonVar struct {
	Name   anyBytes `json:"name"`
	Value  anyBytes `json:"value"`
	Source *Source  `json:"source,omitempty"`
	Own    bool     `json:"own,omitempty"`
	Expand bool     `json:"expand,omitempty"`
	Secret bool     `json:"secret,omitempty"`
}

// MarshalJSON keeps values that are not UTF-8, as Strings does.
func (v Var) MarshalJSON() ([]byte, error) {
	out := jsonVar{Name: anyBytes(v.Name), Value: anyBytes(v.Value), Own: v.Own, Expand: v.Expand, Secret: v.Secret}
	if v.Source != (Source{}) {
		out.Source = &v.Source
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (v *Var) UnmarshalJSON(data []byte) error {
	var in jsonVar
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("cannot read a variable: %w", err)
	}
	*v = Var{Name: string(in.Name), Value: string(in.Value), Own: in.Own, Expand: in.Expand, Secret: in.Secret}
	if in.Source != nil {
		v.Source = *in.Source
	}
	return nil
}
