"""Why a run is slow: in which part, by how many seconds, machine or software, and which settings usually do that."""
