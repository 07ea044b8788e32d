// Package run defines the types of a run: its input (Request, Caller, IO) and its outcome (Result, Event, the
// errors). It also defines what the run's owner may be asked or change meanwhile (Question, PolicyChange).
//
// This package neither starts machines nor decides on grants: packages engine and policy do. Package unitask exports
// these names, too.
package run
