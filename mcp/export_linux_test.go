package mcp

func init() { FindSocket = findSocket }
