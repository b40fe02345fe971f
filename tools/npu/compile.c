/* Compiles a graph for an NPU and writes the blob: compile.exe MODEL.xml BLOB KEY VALUE ...

   Built with mingw against the C API of openvino's Windows wheel, whose header the wheel does not carry; run under wine.
   https://docs.openvino.ai/2026/api/c_cpp_api/group__ov__c__api.html */

#include <stdio.h>

enum { MOST_ARGUMENTS = 16 };

__declspec(dllimport) int ov_core_create(void **core);
__declspec(dllimport) int ov_core_read_model(void *core, const char *model, const char *weights, void **read);
__declspec(dllimport) int ov_core_compile_model(void *core, void *model, const char *device, size_t n, void **compiled, ...);
__declspec(dllimport) int ov_compiled_model_export_model(void *compiled, const char *path);
__declspec(dllimport) const char *ov_get_last_err_msg(void);

static int failed(const char *step, int status) {
    if (status != 0) printf("FAILED %s: %s\n", step, ov_get_last_err_msg());
    fflush(stdout);
    return status != 0;
}

int main(int argc, char **argv) {
    void *core = NULL, *model = NULL, *compiled = NULL;
    const char *a[MOST_ARGUMENTS] = {0};
    size_t n = 0;

    if (argc < 3) {
        fprintf(stderr, "usage: compile MODEL.xml BLOB [KEY VALUE ...]\n");
        return 2;
    }
    for (int i = 3; i < argc && n < MOST_ARGUMENTS; i++) a[n++] = argv[i];
    if (failed("start", ov_core_create(&core))) return 1;
    if (failed("read", ov_core_read_model(core, argv[1], NULL, &model))) return 1;
    /* A variadic function cannot be given an array: absent arguments are null, and n says how many count. */
    if (failed("compile", ov_core_compile_model(core, model, "NPU", n, &compiled, a[0], a[1], a[2], a[3], a[4], a[5], a[6],
                                                a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15])))
        return 1;
    return failed("export", ov_compiled_model_export_model(compiled, argv[2]));
}
