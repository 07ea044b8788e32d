// Package run has the types of a run: its input (Request, Caller, IO), its outcome (Result, Event, the errors), and
// what its owner may be asked or change while it is under way (Question, PolicyChange).
//
// Nothing here starts a machine or decides what is granted. Package unitask does, and exports these names, too.
package run
