"""What each machine instruction does, as far as the checks of early accesses must know: which touch memory, which set
registers, and which are known at all.

Names are those of NVIDIA's CUDA Binary Utilities for Hopper and Blackwell. An instruction that stands in no list here
is not known to leave memory alone: before a wait it counts against the kernel.
"""

from __future__ import annotations

from mktune.jit.disassembly import Instruction


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MMA = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "DMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA")
ASYNC_COPIES = frozenset({"UTMALDG", "UBLKCP"})

_LOADS = frozenset({"LDG", "LD", "LDGSTS", "UTMALDG"})
_WRITES = frozenset({"ST", "STG", "RED", "REDG", "ATOM", "ATOMG", "UTMASTG", "UTMAREDG", "UBLKRED", "UREDGR"})
_LOCAL = frozenset({"LDL", "STL"})
# Of global memory these only ask the L2 for bytes, or speak of caches and order.
_CACHES = _names("UTMAPF UBLKPF UTMACCTL UTMACMDFLUSH CCTL CCTLL CCTLT MEMBAR FENCE ERRBAR CGAERRBAR")

_FROM_MEMORY = frozenset({"LDS", "LDSM", "LDL", "ATOMS", "LDT", "LDTM", "LDC", "LDCU", "ULDC", *MMA}) | _LOADS | _WRITES
_NUMBERS = _names("S2R S2UR CS2R CS2UR LEPC B2R P2R UP2UR VOTE VOTEU ELECT MATCH SYNCS")

# The result fills two registers, or may.
_TWO_REGISTERS = _names("DADD DFMA DMUL F2I I2F F2F I2I FRND UF2I UI2F UF2F UI2I FADD2 FMUL2 FFMA2")
_TESTS = _names("ISETP UISETP FSETP UFSETP DSETP HSETP2 PSETP UPSETP PLOP3 UPLOP3 FCHK QSPC R2P UR2UP")

_FLOAT = _names("""
FADD FADD32I FADD2 FFMA FFMA32I FFMA2 FMUL FMUL32I FMUL2 FMNMX FMNMX3 FSEL FSET FSWZADD MUFU DADD DFMA DMUL HADD2
HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I HSET2 HMNMX2 F2F F2FP F2I F2IP I2F I2FP I2I I2IP FRND UFADD UFFMA UFMUL
UFMNMX UFSEL UFSET UF2F UF2FP UF2I UF2IP UI2F UI2FP UI2I UI2IP UFRND
""")
_INTEGER = _names("""
BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD LEA LOP LOP3 LOP32I POPC SHF SHL SHR
VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3 UBMSK UBREV UCLEA UFLO UIABS UIADD3 UIMAD UIMNMX ULEA ULOP
ULOP3 ULOP32I UPOPC USGXT USHF USHL USHR UVIADD UVIMNMX REDUX CREDUX
""")
_MOVES = _names("MOV MOV32I UMOV UMOV32I MOVM PRMT UPRMT SEL USEL SGXT SHFL R2UR MAPA UMAPA R2B BMOV")
_SHARED = _names("STS STSM STL STT STTM REDS STAS REDAS UMEMSETS UTCBAR UTCCP UTCSHIFT UTCATOMSWS")
_CONTROL = _names("""
ACQBULK ACQSHMINIT BPT BRA BREAK BRX BRXU BSSY BSYNC CALL ENDCOLLECTIVE EXIT JMP JMX JMXU KILL NANOSLEEP PREEXIT RET
RPCMOV WARPSYNC YIELD BAR DEPBAR LDGDEPBAR NOP PMTRIG WARPGROUP WARPGROUPSET USETMAXREG SETMAXREG UCGABAR_ARV
UCGABAR_WAIT UGETNEXTWORKID
""")
_NO_RESULT = _CONTROL | _TESTS | _CACHES
_ARITHMETIC = _FLOAT | _INTEGER | _MOVES
_KNOWN = _NO_RESULT | _ARITHMETIC | _FROM_MEMORY | _NUMBERS | _SHARED | ASYNC_COPIES


def known(instruction: Instruction) -> bool:
    """Whether it is certain what the instruction touches."""
    return instruction.name in _KNOWN


def loads(instruction: Instruction) -> bool:
    """Reads global memory, or shared memory by a generic address. A bulk copy does where it says global to shared."""
    return instruction.name in _LOADS or (instruction.name == "UBLKCP" and ".S.G" in instruction.opcode)


def writes(instruction: Instruction) -> bool:
    """Writes global memory: stores, atomics, reductions, copies from shared memory."""
    return instruction.name in _WRITES or (instruction.name == "UBLKCP" and ".S.G" not in instruction.opcode)


def is_local(instruction: Instruction) -> bool:
    """Touches the thread's own memory: registers did not suffice, or an array is indexed."""
    return instruction.name in _LOCAL


def asks_l2(instruction: Instruction) -> bool:
    """Has global memory brought into the L2, and nobody sees its values."""
    return instruction.name in {"UTMAPF", "UBLKPF"}


def from_memory(instruction: Instruction) -> bool:
    """Its result was read from memory of some kind, or multiplied from it."""
    return instruction.name in _FROM_MEMORY


def is_number(instruction: Instruction) -> bool:
    """Its result is an index, a size or a mask, and no part of an address."""
    return instruction.name in _NUMBERS


def is_arithmetic(instruction: Instruction) -> bool:
    """Its result comes from its operands."""
    return instruction.name in _ARITHMETIC


def has_result(instruction: Instruction) -> bool:
    """Whether it may set registers. Those that only test or jump name the registers that they read first."""
    return instruction.name not in _NO_RESULT


def width(instruction: Instruction) -> tuple[int, int]:
    """Registers that the result fills for certain, and how many it may fill."""
    opcode, name = instruction.opcode, instruction.name
    parts = opcode.split(".")
    if name in MMA or name in {"LDSM", "LDT", "LDTM"}:
        return 1, _accumulators(parts)
    if name == "CS2R" and "32" not in parts:
        return 2, 2
    for part, registers in (("WIDE", 2), ("64", 2), ("128", 4), ("256", 8)):
        if part in parts:
            return registers, registers
    return 1, 2 if name in _TWO_REGISTERS else 1


def _accumulators(parts: list[str]) -> int:
    """Registers of a matrix: of m64nNkK half of N; of what tensor memory gives as many as the instruction says."""
    for part in parts:
        if part.startswith("64x"):
            return max(4, int(part.split("x")[1]) // 2)
        if part.startswith("x") and part[1:].isdigit():
            return int(part[1:])
    return 8
