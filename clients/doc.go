// Package clients has the client libraries of the HTTP API, for programs in other languages. Its tests run theirs, with
// real servers and machines.
package clients
