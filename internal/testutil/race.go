//go:build race

package testutil

// RaceDetector says that this test binary watches for races, at ten times the processor time: simulations of many worlds
// run fewer of them, as make test runs them without the detector, too.
const RaceDetector = true
