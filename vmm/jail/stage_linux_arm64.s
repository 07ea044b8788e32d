#include "go_asm.h"
#include "textflag.h"

// The program of a stage: see stage_linux.go. It refers to nothing outside of itself,
// so that its bytes can be copied into a file. R19 is the step, R20 the status socket.
TEXT ·stageCode(SB), NOSPLIT|NOFRAME, $0-0
	MOVD $const_tableBase, R19
	MOVD (R19), R20
	ADD  $const_tableHead, R19

step:
	MOVD const_stepCall(R19), R8
	CMP  $0, R8
	BLT  end
	MOVD (const_stepArgs+0)(R19), R0
	MOVD (const_stepArgs+8)(R19), R1
	MOVD (const_stepArgs+16)(R19), R2
	MOVD (const_stepArgs+24)(R19), R3
	MOVD (const_stepArgs+32)(R19), R4
	MOVD (const_stepArgs+40)(R19), R5
	SVC
	CMN  $4095, R0
	BCS  failed
	MOVD const_stepInto(R19), R21
	CBZ  R21, next
	MOVD R0, (R21)

next:
	MOVD const_stepThen(R19), R19
	B    step

failed:
	MOVD R0, const_stepResult(R19)
	MOVD $64, R8                   // write
	MOVD R20, R0
	ADD  $const_stepResult, R19, R1
	MOVD $const_reportSize, R2
	SVC
	MOVD const_stepElse(R19), R19
	CBNZ R19, step

end:
	MOVD $94, R8 // exit_group
	MOVD $const_stageExit, R0
	SVC
	UNDEF

// func stageAddress() unsafe.Pointer
TEXT ·stageAddress(SB), NOSPLIT, $0-8
	MOVD $·stageCode(SB), R0
	MOVD R0, ret+0(FP)
	RET
