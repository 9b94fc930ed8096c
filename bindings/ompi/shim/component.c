/* The component: MCA parameters, initialization, the modex, and functions for Rust. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "shim.h"

/* Layouts and numbers that the Rust sources rely on. The build fails with any other Open MPI. */
_Static_assert(sizeof(mca_base_component_t) == 224, "mca_base_component_t");
_Static_assert(offsetof(mca_base_component_t, mca_open_component) == 160, "mca_open_component");
_Static_assert(sizeof(mca_btl_base_component_t) == 280, "mca_btl_base_component_t");
_Static_assert(offsetof(mca_btl_base_component_t, btl_init) == 264, "btl_init");
_Static_assert(sizeof(mca_btl_base_segment_t) == 16, "mca_btl_base_segment_t");
_Static_assert(BTL_VERSION == ESP_BTL_VERSION, "the BTL interface of this series");
_Static_assert(OPAL_ERR_OUT_OF_RESOURCE == -2 && OPAL_ERR_RESOURCE_BUSY == -4
                   && OPAL_ERR_UNREACH == -12 && OPAL_ERROR == -1,
               "used by src/entry.rs");
_Static_assert(MCA_BTL_ATOMIC_ADD == 0x01 && MCA_BTL_ATOMIC_AND == 0x11 && MCA_BTL_ATOMIC_OR == 0x12
                   && MCA_BTL_ATOMIC_XOR == 0x14 && MCA_BTL_ATOMIC_SWAP == 0x1a
                   && MCA_BTL_ATOMIC_MIN == 0x20 && MCA_BTL_ATOMIC_MAX == 0x21,
               "used by src/memory.rs");
_Static_assert(MCA_BTL_REG_FLAG_REMOTE_READ == 2 && MCA_BTL_REG_FLAG_REMOTE_WRITE == 4
                   && MCA_BTL_REG_FLAG_REMOTE_ATOMIC == 8,
               "used by src/memory.rs");

mca_btl_base_module_t esp_modules[ESP_MODULES];

static char *if_include, *if_exclude, *path, *carrier;
static size_t rings = 1 << 20, backlog = 256 << 20;
static int verbose;
static const char *version;
static mca_btl_base_module_error_cb_fn_t on_error;

static void register_parameter(const char *name, const char *description, mca_base_var_type_t type,
                               mca_base_var_info_lvl_t level, void *value)
{
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, name, description,
                                           type, NULL, 0, 0, level, MCA_BASE_VAR_SCOPE_READONLY,
                                           value);
}

static void register_parameters(void)
{
    const mca_base_var_type_t text = MCA_BASE_VAR_TYPE_STRING, size = MCA_BASE_VAR_TYPE_SIZE_T;
    register_parameter("if_include",
                       "Comma-separated names of interfaces to use, each by a module of its own; "
                       "eth* matches a prefix (default: all interfaces of the node's esp-daemon)",
                       text, OPAL_INFO_LVL_2, &if_include);
    register_parameter("if_exclude",
                       "Comma-separated names of interfaces not to use; overrides if_include", text,
                       OPAL_INFO_LVL_2, &if_exclude);
    carrier = "auto";
    register_parameter("carrier",
                       "Carrier of the packets: \"raw\" is raw Ethernet by esp-daemon, \"udp\" is UDP "
                       "without a daemon or privileges, \"auto\" is both: short messages use raw "
                       "Ethernet if the process has a lease, long ones UDP",
                       text, OPAL_INFO_LVL_2, &carrier);
    path = "auto";
    register_parameter("path",
                       "Path of messages: `daemon` through the node's esp-daemon, `lease` directly "
                       "from the process if the daemon permits it, `auto` a lease if possible",
                       text, OPAL_INFO_LVL_2, &path);
    register_parameter("rings",
                       "Size of each of the two buffers of a connection in bytes, a power of two",
                       size, OPAL_INFO_LVL_5, &rings);
    register_parameter("backlog",
                       "Maximum number of bytes of copied short messages that wait in this process",
                       size, OPAL_INFO_LVL_5, &backlog);
    register_parameter("verbose", "1: print how each peer is reached, or why it is not",
                       MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_2, &verbose);
    version = esp_version();
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, "version",
                                           "Version of this component and the Open MPI it is for",
                                           text, NULL, 0, 0, OPAL_INFO_LVL_2,
                                           MCA_BASE_VAR_SCOPE_CONSTANT, &version);
}

int esp_shim_register(void)
{
    /* The other modules become copies of it. */
    mca_btl_base_module_t *module = &esp_modules[0];

    /* Open MPI's loader of components does not check all differences between release series. */
    void (*get_version)(char *, int *) =
        (void (*)(char *, int *)) dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    char library[512] = "";
    int length = 0;
    if (NULL != get_version) {
        get_version(library, &length);
    }
    const char *refusal = esp_other_series(library);
    if (NULL != refusal) {
        fprintf(stderr, "%s\n", refusal);
        return OPAL_ERR_NOT_AVAILABLE;
    }

    register_parameters();
    module->btl_component = &mca_btl_esp_component;
    esp_fill_sends(module);
    esp_fill_onesided(module);
    module->btl_exclusivity = MCA_BTL_EXCLUSIVITY_DEFAULT;
    /* Includes ob1's header, so that messages of 64 KiB are eager. */
    module->btl_eager_limit = 64 * 1024 + 256;
    /* Short, because nothing else is sent until the first fragment of a long message is answered: a
     * message of 256 KiB took twice as long with 64 KiB in the first fragment as with 4 KiB. */
    module->btl_rndv_eager_limit = 4 * 1024;
    /* A quarter of a ring, minus headers. Longer fragments are faster if the data is not in the
     * cache. */
    module->btl_max_send_size = 252 * 1024;
    module->btl_rdma_pipeline_send_length = 128 * 1024;
    module->btl_rdma_pipeline_frag_size = 1 << 20;
    module->btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_SEND_INPLACE | MCA_BTL_FLAGS_RDMA
                        | MCA_BTL_FLAGS_ATOMIC_OPS | MCA_BTL_FLAGS_ATOMIC_FOPS;
    module->btl_atomic_flags = MCA_BTL_ATOMIC_SUPPORTS_ADD | MCA_BTL_ATOMIC_SUPPORTS_AND
                               | MCA_BTL_ATOMIC_SUPPORTS_OR | MCA_BTL_ATOMIC_SUPPORTS_XOR
                               | MCA_BTL_ATOMIC_SUPPORTS_SWAP | MCA_BTL_ATOMIC_SUPPORTS_MIN
                               | MCA_BTL_ATOMIC_SUPPORTS_MAX | MCA_BTL_ATOMIC_SUPPORTS_32BIT
                               | MCA_BTL_ATOMIC_SUPPORTS_CSWAP;
    /* 0: the speed that the driver reports. */
    module->btl_bandwidth = 0;
    module->btl_latency = 10;
    return mca_btl_base_param_register(&mca_btl_esp_component.btl_version, module);
}

int esp_shim_open(void)
{
    return OPAL_SUCCESS;
}

int esp_shim_close(void)
{
    esp_stop();
    return OPAL_SUCCESS;
}

int esp_shim_progress(void)
{
    return esp_progress();
}

/* Returns whether the user has selected this component by name. */
static int is_selected(void)
{
    const char *list = opal_btl_base_framework.framework_selection;
    char **names = NULL == list ? NULL : opal_argv_split(list, ',');
    int found = 0;
    for (int i = 0; NULL != names && NULL != names[i]; ++i) {
        found |= 0 == strcmp(names[i], "esp");
    }
    opal_argv_free(names);
    return found;
}

static uint32_t job_size(void)
{
    opal_process_name_t all = {.jobid = OPAL_PROC_MY_NAME.jobid, .vpid = OPAL_VPID_WILDCARD};
    uint32_t count = 1, *value = &count;
    int rc;
    OPAL_MODEX_RECV_VALUE(rc, ESP_JOB_SIZE, &all, &value, ESP_UINT32);
    return OPAL_SUCCESS == rc && count > 0 ? count : 1;
}

/* Returns whether Open MPI itself yields the core after each empty poll. */
static int open_mpi_yields(void)
{
    const bool *value = NULL;
    const int index = mca_base_var_find("ompi", "mpi", NULL, "yield_when_idle");
    return index >= 0 && OPAL_SUCCESS == mca_base_var_get_value(index, &value, NULL, NULL)
           && NULL != value && *value;
}

static int remember_error(mca_btl_base_module_t *module, mca_btl_base_module_error_cb_fn_t call)
{
    on_error = call;
    return OPAL_SUCCESS;
}

static void publish(const void *entry, size_t length, int *rc)
{
    OPAL_MODEX_SEND(*rc, ESP_MODEX_SCOPE, &mca_btl_esp_component.btl_version, (void *) entry,
                    length);
}

mca_btl_base_module_t **esp_shim_init(int *count, bool progress_threads, bool threads)
{
    mca_btl_base_module_t *sends = &esp_modules[0], *onesided = &esp_modules[ESP_ONESIDED];
    const char *key = getenv("OMPI_MCA_orte_precondition_transports");
    const char *space = getenv("PMIX_NAMESPACE");
    char job[512];
    const void *entry = NULL;
    size_t length = 0;
    int rc;
    struct esp_interface interfaces[ESP_SENDING];

    *count = 0;
    /* The launcher may reuse the number of a job, but not the key, which it generates for
     * transports. */
    snprintf(job, sizeof job, "open mpi %u %.200s %.200s", (unsigned) OPAL_PROC_MY_NAME.jobid,
             NULL == key ? "" : key, NULL == space ? "" : space);
    const struct esp_parameters parameters = {
        .rank = OPAL_PROC_MY_NAME.vpid,
        .size = job_size(),
        .job = job,
        .node = opal_process_info.nodename,
        .if_include = if_include,
        .if_exclude = if_exclude,
        .path = path,
        .carrier = carrier,
        .rings = rings,
        .max_message = esp_max_message(sends),
        .eager = sends->btl_eager_limit,
        .backlog = backlog,
        .yields = !open_mpi_yields(),
        .verbose = verbose > mca_btl_base_verbose ? verbose : mca_btl_base_verbose,
        .report_errors = is_selected(),
    };
    const int interface_count = esp_start(&parameters, &entry, &length, interfaces);
    publish(entry, length, &rc);
    if (interface_count <= 0) {
        return NULL;
    }
    mca_btl_base_module_t **modules = malloc(ESP_MODULES * sizeof *modules);
    if (OPAL_SUCCESS != rc || NULL == modules) {
        free(modules);
        esp_stop();
        return NULL;
    }
    sends->btl_register_error = remember_error;
    const uint32_t onesided_flags =
        MCA_BTL_FLAGS_RDMA | MCA_BTL_FLAGS_ATOMIC_OPS | MCA_BTL_FLAGS_ATOMIC_FOPS;
    *onesided = *sends;
    onesided->btl_flags &= onesided_flags;
    const int has_onesided = onesided_flags == onesided->btl_flags;
    /* A put is complete when the peer has replied. */
    onesided->btl_flags |= ESP_REMOTE_COMPLETION;
    sends->btl_flags &= ~onesided_flags;
    for (int i = interface_count - 1; i >= 0; --i) {
        esp_modules[i] = *sends;
        if (0 == esp_modules[i].btl_bandwidth) {
            esp_modules[i].btl_bandwidth = 0 != interfaces[i].speed ? interfaces[i].speed : 10000;
        }
    }
    while (*count < interface_count) {
        modules[*count] = &esp_modules[*count];
        ++*count;
    }
    if (has_onesided) {
        modules[(*count)++] = onesided;
    }
    return modules;
}

/* --- Functions that Rust calls --- */

int esp_shim_modex_entry(uint32_t rank, void **entry, size_t *length)
{
    opal_process_name_t name = {.jobid = OPAL_PROC_MY_NAME.jobid, .vpid = rank};
    int rc;
    *entry = NULL;
    *length = 0;
    OPAL_MODEX_RECV(rc, &mca_btl_esp_component.btl_version, &name, (uint8_t **) entry, length);
    return OPAL_SUCCESS == rc ? 0 : -1;
}

void esp_shim_free(void *entry)
{
    free(entry);
}

void esp_shim_print(const char *text)
{
    opal_output(0, "%s", text);
}

void esp_shim_show_help(const char *topic)
{
    static const char name[] = "help-mpi-btl-esp.txt";
    static int found = -1;
    if (found < 0) {
        /* The file is in the component's folder, not in that of Open MPI's own help files. */
        Dl_info info;
        char file[4096] = "";
        found = 0;
        if (0 != dladdr(&esp_modules, &info) && NULL != info.dli_fname) {
            const char *slash = strrchr(info.dli_fname, '/');
            const int length = NULL == slash ? 0 : (int) (slash - info.dli_fname);
            snprintf(file, sizeof file, "%.*s/%s", length, info.dli_fname, name);
            if (length > 0 && 0 == access(file, R_OK)) {
                file[length] = 0;
                found = OPAL_SUCCESS == opal_show_help_add_dir(file);
            }
        }
    }
    if (found) {
        opal_show_help(name, topic, true);
    }
}

void esp_shim_fail_job(const char *text)
{
    if (NULL != on_error) {
        /* Prints the text and ends the job. */
        on_error(&esp_modules[0], MCA_BTL_ERROR_FLAGS_FATAL, NULL, (char *) text);
    } else {
        opal_output(0, "%s", text);
    }
}
