package accel

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"muster/internal/errhint"
	"muster/internal/wording"
)

// ShareCPUs divides CPUs among workers: those of list (as in 0,2-5), or one of each core that this process may use
// where it is empty. The shares are equal and in the order of local ranks; what is left over is nobody's. Errors carry
// status 2.
func ShareCPUs(root Root, list string, workers int) ([][]int, error) {
	allowed, err := root.Affinity()
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	cpus, err := parseList(list)
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	for _, c := range cpus {
		if _, found := slices.BinarySearch(allowed, c); !found {
			return nil, errhint.With(errhint.Usagef("muster may not use CPU %d", c), "those that it may use are "+FormatList(allowed))
		}
	}
	what := "CPU"
	if len(cpus) == 0 {
		what = "core"
		cores, err := groupCPUs(allowed, func(cpu int) ([]int, error) { return siblings(root, cpu) })
		if err != nil {
			return nil, errhint.Code(err, errhint.Usage)
		}
		for _, core := range cores {
			cpus = append(cpus, core.cpus[0])
		}
	}
	each := len(cpus) / workers
	if each == 0 {
		err := fmt.Errorf("%s for %s: each needs one at least", wording.Plural(len(cpus), what), wording.Plural(workers, "worker"))
		return nil, errhint.Code(err, errhint.Usage)
	}
	shares := make([][]int, workers)
	for i := range shares {
		shares[i] = slices.Sorted(slices.Values(cpus[i*each : (i+1)*each]))
	}
	return shares, nil
}

// Cores groups cpus by the physical core that they are of. A CPU of which the machine does not tell the core counts as
// a core of its own.
func Cores(root Root, cpus []int) [][]int {
	groups, _ := groupCPUs(cpus, func(cpu int) ([]int, error) { // nothing below fails
		if list, err := siblings(root, cpu); err == nil {
			return list, nil
		}
		return []int{cpu}, nil
	})
	cores := make([][]int, len(groups))
	for i, g := range groups {
		cores[i] = g.cpus
	}
	return cores
}

// NUMANodes counts the NUMA nodes that have CPUs, at least 1.
func NUMANodes(root Root) (n int, why string, err error) {
	online, err := readList(root, path.Join(nodesDir, "online"))
	if err != nil {
		return 1, "NUMA nodes are not told: one is taken", nil //nolint:nilerr // a kernel without NUMA has no such file
	}
	for _, node := range online {
		cpus, err := readList(root, cpulist(node))
		if err != nil {
			return 0, "", err
		}
		if len(cpus) > 0 {
			n++
		}
	}
	if n == 0 {
		return 0, "", errors.New("no NUMA node has a CPU")
	}
	return n, wording.Plural(n, "NUMA node") + " with CPUs", nil
}
