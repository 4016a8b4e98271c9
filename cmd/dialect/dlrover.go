package dialect

// dlroverRun is the name of DLRover's launcher.
const dlroverRun = "dlrover-run"
