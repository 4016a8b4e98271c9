package job

import "strings"

// FileName makes a run ID, which may be anything, the start of a file name that stays in its directory.
func FileName(runID string) string {
	name := strings.Map(func(r rune) rune {
		if r == '/' || r < ' ' || r == 0x7f || r == '�' {
			return '_'
		}
		return r
	}, runID)
	const most = 200 // of the 255 bytes that a name may have
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "")
	}
	return name
}
