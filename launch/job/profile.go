package job

import "slices"

// EnvProfile names a framework in whose variables workers are told of each other, beside torchelastic's; empty: none.
type EnvProfile string

// The profiles. What each of them sets is in launch/plan.
const (
	ProfilePaddle     EnvProfile = "paddle"
	ProfileJAX        EnvProfile = "jax"
	ProfileTensorFlow EnvProfile = "tensorflow"
)

// EnvProfiles are the names of the profiles.
func EnvProfiles() []string {
	return []string{string(ProfilePaddle), string(ProfileJAX), string(ProfileTensorFlow)}
}

// profileNames are the variables that a profile tells every worker. Read in PaddlePaddle
// (python/paddle/distributed/launch/controllers/collective.py, distributed/parallel.py), in jax 0.10.2
// (jax/_src/distributed.py, clusters/ompi_cluster.py), and in TensorFlow's documentation of TF_CONFIG. jax reads no
// variable of its own for the number of processes and for the rank: it takes Open MPI's.
var profileNames = map[EnvProfile][]string{
	ProfilePaddle: {
		"PADDLE_MASTER", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT",
		"PADDLE_GLOBAL_RANK", "PADDLE_GLOBAL_SIZE", "PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE", "PADDLE_RANK_IN_NODE", "PADDLE_NNODES",
	},
	ProfileJAX: {
		"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
		"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_orte_hnp_uri",
	},
	ProfileTensorFlow: {"TF_CONFIG"},
}

// Tells reports whether the profile sets the variable for every worker, so that EnvRules.Set cannot.
func (p EnvProfile) Tells(name string) bool { return slices.Contains(profileNames[p], name) }
