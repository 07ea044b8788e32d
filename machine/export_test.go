package machine

// Pid is the process id of the machine's QEMU.
func (m *Machine) Pid() int { return m.qemu().Pid() }
