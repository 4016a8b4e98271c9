// Package pickle reads Python's pickles of plain data that come from elsewhere, and names the opcodes for those who
// write some. Nothing that stands in a pickle is run: what may be named and called is listed by who reads it, and done
// in Go.
package pickle

import "fmt"

// The values that a pickle can hold, beyond nil, bool, int64, float64, string and []byte. Containers are pointers
// because a pickle names a container before it fills it, and may name it twice.
type (
	// Tuple is a tuple.
	Tuple []any
	// List is a list.
	List struct{ Items []any }
	// Set is a set; what Python would compare is not: an item may be there twice.
	Set struct{ Items []any }
	// Dict is a dict; a key may be there twice.
	Dict struct{ Pairs []Pair }
	// Pair is an item of a Dict, or an attribute of an Object.
	Pair struct{ Key, Value any }
	// Object is an instance of a class that cannot be called, and what its attributes are to be.
	Object struct {
		Class *Class
		Attrs []Pair
		built bool
	}
)

// Class is a global that a pickle may name.
type Class struct {
	Module, Name string
	// Call is what comes of calling it; nil for a class of which instances are made, to be filled.
	Call func(args Tuple) (any, error)
}

// Described is a value that a Call has made, and what it is called in errors, with its article.
type Described interface{ Described() string }

// Describe names the kind of a value in errors.
func Describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case int64:
		return "an int"
	case float64:
		return "a float"
	case string:
		return "a str"
	case []byte:
		return "bytes"
	case Tuple:
		return fmt.Sprintf("a tuple of %d", len(v))
	case *List:
		return "a list"
	case *Set:
		return "a set"
	case *Dict:
		return "a dict"
	case *Class:
		return "a class"
	case *Object:
		return "a " + v.Class.Name
	case Described:
		return v.Described()
	}
	return fmt.Sprintf("a %T", v)
}
