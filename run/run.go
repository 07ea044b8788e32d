// Package run has the values that a run consists of: what is asked (Request, Caller, IO), what comes of it (Result,
// Event, the errors), and what its owner may be asked while it is under way (Question, PolicyChange).
//
// These are values. Nothing here starts a machine or decides what is granted; package unitask does, which has these
// names, too.
package run
