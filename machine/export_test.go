package machine

// Pid is the process id of the machine's QEMU.
func (m *Machine) Pid() int { return m.qemu().Pid() }

// AtPauseSteps has a function called at each step of every pause.
func AtPauseSteps(f func(step string)) { pauseStep = f }
