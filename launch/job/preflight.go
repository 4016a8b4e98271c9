package job

import "time"

// Preflight is what a node has that must fit the others, looked up before any worker starts.
type Preflight struct {
	// Host is the machine's own name, Arch and Kernel its architecture and the release of its kernel.
	Host   string `json:"host"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	// Time is the node's clock when the rest was known. Received is that of whoever got this; it fills it in.
	Time     time.Time `json:"time"`
	Received time.Time `json:"received"`
	// Dir is the working directory.
	Dir string `json:"dir"`
	// Problem is why the job cannot start here, such as a missing script, with a hint and an exit status; empty for
	// none.
	Problem string `json:"problem,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Status  int    `json:"status,omitempty"`
	// Python is the path of the workers' interpreter, PythonVersion and Torch what it says of itself; empty where the
	// command is no Python, and where there is no torch. PythonProblem is why it cannot be asked.
	Python        string `json:"python,omitempty"`
	PythonVersion string `json:"python_version,omitempty"`
	Torch         string `json:"torch,omitempty"`
	PythonProblem string `json:"python_problem,omitempty"`
	// Workers is how many the node starts, Accelerators how many workers may use.
	Workers      int `json:"workers"`
	Accelerators int `json:"accelerators"`
	// OpenFiles and LockedMemory (bytes) are soft limits; the largest number there is stands for none. SharedMemory is
	// the size of /dev/shm in bytes, 0 where there is none.
	OpenFiles    uint64 `json:"open_files"`
	LockedMemory uint64 `json:"locked_memory"`
	SharedMemory uint64 `json:"shared_memory"`
}

// SmallSharedMemory is what container run-times give to /dev/shm unless asked otherwise (64 MiB), and a little more.
const SmallSharedMemory = 128 << 20
