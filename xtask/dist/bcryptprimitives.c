// The one function of bcryptprimitives.dll that Rust's standard library calls, for Wine before 9,
// which lacks that library. It is put beside apr.exe where Wine tries it out, and in no archive.
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T len) {
    while (len > 0) {
        ULONG part = len > 0x10000000 ? 0x10000000 : (ULONG)len;
        if (!RtlGenRandom(data, part)) return FALSE;
        data += part;
        len -= part;
    }
    return TRUE;
}
