//go:build !linux

package mcp_test

// Where peers can't be told, nobody calls as another user.
const stranger = "UNITASK_TEST_STRANGER"

func callAsStranger(string) int { return 1 }
