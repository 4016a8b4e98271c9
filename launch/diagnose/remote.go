package diagnose

import (
	"slices"
	"strings"

	"muster/launch/evidence"
)

// remote are the beginnings of the names of the kernel's functions in which a process waits for files of another
// machine, or of a program that serves them: NFS, Lustre, Ceph, FUSE, CIFS, 9p, AFS, GPFS, BeeGFS, GFS2, OCFS2. The
// list is from memory of their sources: a name that is missing costs one exclusion at most.
var remote = []string{
	"nfs", "__nfs", "rpc_", "__rpc_", "xprt_", "nlm", "ptlrpc_", "ldlm_", "osc_", "lov_", "mdc_", "cl_sync_io", "cl_lock_", "ll_file_",
	"ceph_", "__ceph", "fuse_", "__fuse", "request_wait_answer", "cifs_", "smb2_", "SMB2_", "wait_for_response", "p9_", "v9fs_", "afs_",
	"rxrpc_", "netfs_", "cxiWait", "FhgfsOps", "gfs2_", "ocfs2_", "dlm_",
}

// Remote reports whether the main thread of a rank waits for files that are not on its machine, as far as its place in
// the kernel says it.
func Remote(r *evidence.Rank) bool {
	main := r.Main()
	if main == nil || main.State != "D" {
		return false
	}
	t := mainThread(main)
	return slices.ContainsFunc(append([]string{t.Wchan}, t.Kernel...), func(name string) bool {
		return slices.ContainsFunc(remote, func(begin string) bool { return strings.HasPrefix(name, begin) })
	})
}
