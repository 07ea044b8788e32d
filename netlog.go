package unitask

// NetlogSchema is the version of a netlog's lines, which grows when a member changes its
// meaning or goes; new members do not change it.
const NetlogSchema = 1

// netlogLine is a line of the netlog as the record has it: it says whose it is, so that lines
// of many runs can lie in one place.
type netlogLine struct {
	Schema int    `json:"schema"`
	Run    string `json:"run"`
	Caller string `json:"caller,omitempty"`
	Worker string `json:"worker,omitempty"` // of a fleet, that says so
	Decision
}
