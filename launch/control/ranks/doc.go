// Package ranks is how commands come to single ranks of a job, wherever these run: they are found (muster exec), what
// they have written is shown (muster logs), and what they do is seen (muster stacks, muster diagnose). Ranks of this
// machine are asked of the musters that run them, all others of a muster that passes the question on. It knows no agent.
package ranks
