package manifest

import (
	"fmt"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
)

// slurm is a batch script for sbatch.
func slurm(s Spec) string {
	var b strings.Builder
	b.WriteString("#!/bin/bash\n")
	for _, line := range rewrapped(s.head("Start it by sbatch."), commentWidth) {
		fmt.Fprintf(&b, "# %s\n", line)
	}
	option := func(on bool, text, why string) {
		if !on {
			return
		}
		comment(&b, why, "")
		fmt.Fprintf(&b, "#SBATCH --%s\n", text)
	}
	option(true, "job-name="+s.Name, "")
	option(s.Partition != "", "partition="+s.Partition, "")
	option(s.Account != "", "account="+s.Account, "")
	option(s.Queue != "", "qos="+s.Queue, "")
	option(true, fmt.Sprintf("nodes=%d", s.Nodes), "")
	option(true, "ntasks-per-node=1", "One muster on each node; it starts the workers there.")
	option(s.Accelerators > 0, fmt.Sprintf("gpus-per-node=%d", s.Accelerators), "")
	option(s.CPU != "", "cpus-per-task="+s.CPU, "CPUs of a node: all its workers share them.")
	option(s.Memory != "", "mem="+megabytes(s.Memory), "Memory of a node; checkpoints in memory count as well.")
	option(s.CPU == "", "exclusive", "The whole node: no other job disturbs the workers.")
	option(s.Topology != "", "switches="+s.Topology, "All nodes below so many switches.")
	option(s.Deadline > 0, "time="+clock(s.Deadline),
		"The job's time. The script asks for it anew when it is over, and training goes on from the newest step.")
	option(true, "requeue", "Slurm may start the job again when a node is lost or the job is pre-empted.")
	option(true, "open-mode=append", "The log of the first start stays when the job starts again.")
	option(true, "output=%x-%j.out", "")
	option(true, fmt.Sprintf("signal=B:USR1@%d", seconds(s.ending())), fmt.Sprintf(
		"So many seconds before the end this script gets SIGUSR1: %d s from the notice to SIGTERM, %d s of --grace, %d s for the newest "+
			"step to disk. With PreemptParameters=send_user_signal Slurm sends it before a pre-emption, too.", seconds(s.Notice),
		seconds(s.Grace), seconds(saving)))
	b.WriteString("\n")
	for _, e := range s.Env {
		name, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, shellescape.Quote(value))
	}
	s.slurmStep(&b)
	s.slurmEnd(&b)
	return b.String()
}

// slurmStep starts muster on all nodes.
func (s *Spec) slurmStep(b *strings.Builder) {
	container := ""
	if s.Image != "" {
		container = " --container-image=" + shellescape.Quote(s.Image) + ` --container-mounts="$PWD:$PWD"`
		comment(b, "--container-image and --container-mounts are options of the plug-in pyxis. The file of the notice is made outside.", "")
	}
	comment(b,
		"One muster on each node. The variables of Slurm's step tell it the nodes, its rank and where they meet. Nodes tell each other "+
			"of failures: srun kills no others because one has ended.", "")
	b.WriteString("file=$PWD/.muster-$SLURM_JOB_ID.notice\n")
	fmt.Fprintf(b, "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none%s \\\n  muster run \\\n", container)
	for _, f := range s.words() {
		word := shellescape.Quote(f.text)
		if f.text == slurmNotice {
			word = `--ckpt-on-file="$file"`
		}
		fmt.Fprintf(b, "  %s \\\n", word)
	}
	fmt.Fprintf(b, "  -- %s &\nstep=$!\n\n", shellescape.QuoteCommand(s.Command))
}

// slurmNotice stands among a node's flags for the file by which the script gives notice.
const slurmNotice = "--ckpt-on-file=.muster-SLURM_JOB_ID.notice"

// slurmEnd waits for the step, and asks for the job anew where that helps.
func (s *Spec) slurmEnd(b *strings.Builder) {
	fmt.Fprintf(b, `# The notice: a second step makes a file on each node, which muster waits for. A signal to the first step would reach
# the workers as well where Slurm has ProctrackType=proctrack/linuxproc, and they would die of it. The newest step goes
# to disk while training goes on, and muster.checkpoint's preempted becomes true, so that a script can save its last
# step and end. %[1]d s later SIGTERM ends the workers that have not.
noticed='' caught='' timer=''
notice() {
  caught=1 noticed=1
  echo "$(date +%%FT%%T) the job's time is nearly over: the newest step goes to disk" >&2
  srun --overlap --ntasks-per-node=1 --cpu-bind=none touch "$file" &
  { sleep %[1]d & trap "kill $!" TERM; wait $! && scancel --signal=TERM "$SLURM_JOB_ID"; } &
  timer=$!
}
# A pre-emption without a notice: muster ends the workers and saves.
stop() {
  caught=1
  scancel --signal=TERM "$SLURM_JOB_ID"
}
trap notice USR1
trap stop TERM

# wait returns early when a signal is caught.
while :; do
  caught=''
  wait "$step"
  status=$?
  [ -n "$caught" ] || break
done
[ -z "$timer" ] || kill "$timer" 2>/dev/null
rm -f "$file"

`, seconds(s.Notice))
	fmt.Fprintf(b, `# What has ended well, or failed by itself, is not started again. A job whose time was over is, whatever its status: its
# script may have saved and ended because of the notice; one that has trained to its end finds nothing to do then. So is
# one that ended because of a machine: muster's status 75 (nodes did not meet), 80 (a node at fault) and 81 (a
# straggler).
again=$noticed
case $status in
75 | 80 | 81) [ "${SLURM_RESTART_COUNT:-0}" -ge %d ] || again=1 ;;
esac
if [ -n "$again" ]; then
  echo "$(date +%%FT%%T) status $status: the job is queued again" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
`, maxRequeues)
}

// maxRequeues bounds how often a job is queued again because of machines.
const maxRequeues = 10

// clock is a time as Slurm has it.
func clock(d time.Duration) string {
	n := seconds(d)
	return fmt.Sprintf("%d-%02d:%02d:%02d", n/86400, n/3600%24, n/60%60, n%60)
}

// megabytes is an amount of memory in the units of Slurm, which are powers of 1,024.
func megabytes(quantity string) string {
	number, unit := quantity, ""
	for i, r := range quantity {
		if r >= 'A' {
			number, unit = quantity[:i], quantity[i:]
			break
		}
	}
	var n float64
	_, _ = fmt.Sscanf(number, "%g", &n)
	factors := map[string]float64{
		"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30,
		"Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
	}
	return fmt.Sprintf("%dM", max(1, int64(n*factors[unit])>>20))
}
