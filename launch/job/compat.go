package job

import "muster/internal/errhint"

// CompatStatus is the status that muster ends with where status is why the job was not run, or not to its end: that of
// the launchers that muster replaces where CompatExit asks for it. Refused input keeps its own.
func (j *Job) CompatStatus(status int) int {
	if j.CompatExit && status != errhint.OK && status != errhint.Usage {
		return 1
	}
	return status
}
