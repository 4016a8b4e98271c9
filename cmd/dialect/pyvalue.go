package dialect

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

var errRange = errors.New("is out of range")

// pyInt reads an integer as Python's int(text) does: blanks around it, a sign, leading zeros and single underscores
// between digits are allowed. Unlike Python's, our integers end at 64 bits.
func pyInt(text string) (int, error) {
	digits := strings.TrimFunc(text, unicode.IsSpace)
	plain, ok := withoutUnderscores(digits)
	if !ok || strings.Trim(plain, "+-0123456789") != "" {
		return 0, fmt.Errorf("invalid integer %q", text)
	}
	n, err := strconv.Atoi(plain)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("integer %q %w", text, errRange)
	case err != nil:
		return 0, fmt.Errorf("invalid integer %q", text)
	}
	return n, nil
}

// pyFloat reads a number as Python's float(text) does; what is too large becomes an infinity.
func pyFloat(text string) (float64, error) {
	plain, ok := withoutUnderscores(strings.ToLower(strings.TrimFunc(text, unicode.IsSpace)))
	if !ok {
		return 0, fmt.Errorf("invalid number %q", text)
	}
	switch strings.TrimLeft(plain, "+-") {
	case "nan":
		if len(plain) <= len("-nan") {
			return math.NaN(), nil
		}
	case "inf", "infinity": // strconv knows them too
	default:
		if strings.Trim(plain, "+-.0123456789e") != "" { // strconv would take hexadecimal
			return 0, fmt.Errorf("invalid number %q", text)
		}
	}
	f, err := strconv.ParseFloat(plain, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("invalid number %q", text)
	}
	return f, nil
}

// withoutUnderscores removes underscores that stand between two digits and reports whether there were no others.
func withoutUnderscores(text string) (string, bool) {
	for i, c := range text {
		if c == '_' && (i == 0 || i == len(text)-1 || !isDigit(text[i-1]) || !isDigit(text[i+1])) {
			return "", false
		}
	}
	return strings.ReplaceAll(text, "_", ""), true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// commaList splits a list as torchrun's duplicate filters are split: at commas, two commas being a literal one.
func commaList(text string) []string {
	items := []string{""}
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], ",,"):
			items[len(items)-1] += ","
			i++
		case text[i] == ',':
			items = append(items, "")
		default:
			items[len(items)-1] += text[i : i+1]
		}
	}
	return items
}
