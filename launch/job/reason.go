package job

import "time"

// Reason names why a job or a round ended, in the words of the status file. Handlers bring more.
type Reason string

// The reasons.
const (
	ReasonSucceeded    Reason = "WorkersSucceeded"
	ReasonWorkerFailed Reason = "WorkerFailed"         // restarted, or final because nothing asks for a restart
	ReasonFatal        Reason = "FatalExitCode"        // a code of RestartRules.Fatal
	ReasonMaxRestarts  Reason = "MaxRestartsReached"   // RestartRules.MaxRestarts
	ReasonBackoffLimit Reason = "BackoffLimitReached"  // RestartRules.BackoffLimit
	ReasonRestartLimit Reason = "RestartLimitReached"  // RestartRules.ReplaceLimit, or LossLimit or RankLimit: a node was lost
	ReasonCrashLoop    Reason = "CrashLoop"            // RestartRules.CrashLoop
	ReasonDeadline     Reason = "DeadlineExceeded"     // RestartRules.Deadline
	ReasonStopped      Reason = "StopRequested"        // a signal to muster, or muster stop
	ReasonRequested    Reason = "RestartRequested"     // reassembled: muster restart
	ReasonPaused       Reason = "PauseRequested"       // reassembled, and paused: muster pause
	ReasonResumed      Reason = "ResumeRequested"      // reassembled, and paused no longer: muster resume
	ReasonScaled       Reason = "ScaleRequested"       // reassembled: muster scale
	ReasonSurplus      Reason = "ScaledDown"           // this node has left, for the job was to have fewer nodes
	ReasonFinished     Reason = "WorkersSucceededOnce" // restarted although all went well: RestartAlways
	ReasonNodeStopped  Reason = "NodeStopped"          // reassembled: muster was asked to stop on one of the nodes
	ReasonLeaseOver    Reason = "LeaseOver"            // reassembled: nobody heard of a node, whose workers were killed for that
	ReasonHang         Reason = "WorkersHang"          // HangRules.Timeout
	ReasonRefused      Reason = "Refused"              // muster did not start the job
	ReasonNotMet       Reason = "NodesNotMet"          // the nodes did not meet in time, or too few are left
	ReasonNotSaved     Reason = "CheckpointNotSaved"   // the workers have succeeded, but what they saved last is not on disk
	ReasonInternal     Reason = "InternalError"        // muster could not run the job, or not end it
)

// RootCauseWindow is how close to another failure a worker must have ended for its broken connection to be put down to
// that failure; longer where other failures were waited for.
const RootCauseWindow = 5 * time.Second
