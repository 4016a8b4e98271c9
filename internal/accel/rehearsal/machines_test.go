package rehearsal_test

import "muster/internal/accel/acceltest"

// Short names for the machines of the tests.
type (
	tree      = acceltest.Tree
	numaTree  = acceltest.NUMA
	boundRoot = acceltest.Bound
)

var (
	pci         = acceltest.PCI
	dri         = acceltest.DRI
	nodes       = acceltest.Nodes
	control     = acceltest.Control
	bridge      = acceltest.Bridge
	gpuA        = acceltest.GPUA
	allOpen     = acceltest.AllOpen
	cpuNode     = acceltest.CPUNode
	ascend      = acceltest.Ascend
	vendorTrees = acceltest.VendorTrees
	duo         = acceltest.Duo
	env         = acceltest.Env
	list        = acceltest.List
	spec        = acceltest.Fake
	fakeOf      = acceltest.FakeOf
)
