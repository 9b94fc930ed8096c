/* The component: parameters, start, the modex, and what Rust asks of Open MPI. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "shim.h"

/* What src/component.rs says of layouts. Another Open MPI breaks the build here, not a program. */
_Static_assert(sizeof(mca_base_component_t) == 224, "mca_base_component_t");
_Static_assert(offsetof(mca_base_component_t, mca_open_component) == 160, "mca_open_component");
_Static_assert(sizeof(mca_btl_base_component_t) == 280, "mca_btl_base_component_t");
_Static_assert(offsetof(mca_btl_base_component_t, btl_init) == 264, "btl_init");
_Static_assert(sizeof(mca_btl_base_segment_t) == 16, "mca_btl_base_segment_t");
_Static_assert(BTL_VERSION == ESP_BTL_VERSION, "the BTL interface of this series");
_Static_assert(OPAL_ERR_OUT_OF_RESOURCE == -2 && OPAL_ERR_RESOURCE_BUSY == -4 && OPAL_ERR_UNREACH == -12 && OPAL_ERROR == -1,
               "src/ffi.rs has them, too");
_Static_assert(MCA_BTL_ATOMIC_ADD == 0x01 && MCA_BTL_ATOMIC_AND == 0x11 && MCA_BTL_ATOMIC_OR == 0x12 && MCA_BTL_ATOMIC_XOR == 0x14
                   && MCA_BTL_ATOMIC_SWAP == 0x1a && MCA_BTL_ATOMIC_MIN == 0x20 && MCA_BTL_ATOMIC_MAX == 0x21,
               "src/memory.rs has them, too");
_Static_assert(MCA_BTL_REG_FLAG_REMOTE_READ == 2 && MCA_BTL_REG_FLAG_REMOTE_WRITE == 4 && MCA_BTL_REG_FLAG_REMOTE_ATOMIC == 8,
               "src/memory.rs has them, too");

mca_btl_base_module_t esp_modules[ESP_MODULES];

static char *if_include, *if_exclude, *path;
static size_t rings = 1 << 20, backlog = 256 << 20, coalesce_limit = 1 << 10;
static int verbose, yield_after = 16;
static mca_btl_base_module_error_cb_fn_t on_error;

static void text(const char *name, const char *about, char **value)
{
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, name, about, MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0,
                                           OPAL_INFO_LVL_2, MCA_BASE_VAR_SCOPE_READONLY, value);
}

static void size(const char *name, const char *about, size_t *value)
{
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, name, about, MCA_BASE_VAR_TYPE_SIZE_T, NULL, 0, 0,
                                           OPAL_INFO_LVL_5, MCA_BASE_VAR_SCOPE_READONLY, value);
}

/* A figure of one interface, as btl/tcp has them: btl_esp_bandwidth_eth0. */
static void figure(const char *name, const char *interface, const char *about, uint32_t *value)
{
    char full[64];
    snprintf(full, sizeof full, "%s_%s", name, interface);
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, full, about, MCA_BASE_VAR_TYPE_UNSIGNED_INT, NULL, 0, 0,
                                           OPAL_INFO_LVL_5, MCA_BASE_VAR_SCOPE_READONLY, value);
}

int esp_shim_register(void)
{
    /* The others become copies of it. */
    mca_btl_base_module_t *module = &esp_modules[0];

    /* The loader compares less than what differs between series: without this, another series would read our structures as its own. */
    void (*version)(char *, int *) = (void (*)(char *, int *)) dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    char library[512] = "";
    int length = 0;
    if (NULL != version) {
        version(library, &length);
    }
    if (!esp_series_fits(library)) {
        fprintf(stderr, "esp: this component is for Open MPI 4.1, and is ignored in: %.80s; build it against that version's headers\n",
                library);
        return OPAL_ERR_NOT_AVAILABLE;
    }

    text("if_include", "Interfaces to use, by name, separated by commas, each by a module of its own; eth* means all that begin so (default: all the node's esp-daemon serves)",
         &if_include);
    text("if_exclude", "Interfaces not to use, likewise; stronger than if_include", &if_exclude);
    path = "auto";
    text("path", "How messages go: `daemon` through the node's esp-daemon, `lease` straight from the process where the daemon allows it, `auto` what is possible",
         &path);
    size("rings", "Bytes of each of the two buffers of a connection, a power of two", &rings);
    size("backlog", "Most bytes of short messages that wait in this process for connections or slow peers", &backlog);
    size("coalesce_limit",
         "Longest message that may wait for the next one of a row, to go in the same frame, over a lease and in a program that goes on at once again and again; 0: none waits",
         &coalesce_limit);
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, "yield_after",
                                           "Looks in vain after which the processor is offered to others (the daemon among them); 0: never, or only by mpi_yield_when_idle, which goes before",
                                           MCA_BASE_VAR_TYPE_INT, NULL, 0, 0, OPAL_INFO_LVL_5, MCA_BASE_VAR_SCOPE_READONLY,
                                           &yield_after);
    (void) mca_base_component_var_register(&mca_btl_esp_component.btl_version, "verbose",
                                           "1: say for each peer which interface and path is used, or why none", MCA_BASE_VAR_TYPE_INT,
                                           NULL, 0, 0, OPAL_INFO_LVL_2, MCA_BASE_VAR_SCOPE_READONLY, &verbose);

    module->btl_component = &mca_btl_esp_component;
    esp_fill_sends(module);
    esp_fill_onesided(module);
    module->btl_exclusivity = MCA_BTL_EXCLUSIVITY_DEFAULT;
    /* The limits count ob1's header, too: 64 KiB shall go at once. */
    module->btl_eager_limit = module->btl_rndv_eager_limit = 64 * 1024 + 256;
    /* A quarter of a ring, with room for headers: longer pieces go faster when memory, not the cache, is the source. */
    module->btl_max_send_size = 252 * 1024;
    module->btl_rdma_pipeline_send_length = 128 * 1024;
    module->btl_rdma_pipeline_frag_size = 1 << 20;
    module->btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_SEND_INPLACE | MCA_BTL_FLAGS_RDMA | MCA_BTL_FLAGS_ATOMIC_OPS
                        | MCA_BTL_FLAGS_ATOMIC_FOPS;
    module->btl_atomic_flags = MCA_BTL_ATOMIC_SUPPORTS_ADD | MCA_BTL_ATOMIC_SUPPORTS_AND | MCA_BTL_ATOMIC_SUPPORTS_OR
                               | MCA_BTL_ATOMIC_SUPPORTS_XOR | MCA_BTL_ATOMIC_SUPPORTS_SWAP | MCA_BTL_ATOMIC_SUPPORTS_MIN
                               | MCA_BTL_ATOMIC_SUPPORTS_MAX | MCA_BTL_ATOMIC_SUPPORTS_32BIT | MCA_BTL_ATOMIC_SUPPORTS_CSWAP;
    /* What the driver says. */
    module->btl_bandwidth = 0;
    module->btl_latency = 10;
    return mca_btl_base_param_register(&mca_btl_esp_component.btl_version, module);
}

int esp_shim_open(void) { return OPAL_SUCCESS; }

int esp_shim_close(void)
{
    esp_stop();
    return OPAL_SUCCESS;
}

int esp_shim_progress(void) { return esp_progress(); }

/* The user has named this component. */
static int asked_for(void)
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

/* Open MPI itself offers the processor after each vain look. */
static int yields(void)
{
    const bool *value = NULL;
    const int index = mca_base_var_find("ompi", "mpi", NULL, "yield_when_idle");
    return index >= 0 && OPAL_SUCCESS == mca_base_var_get_value(index, &value, NULL, NULL) && NULL != value && *value;
}

static int remember_error(mca_btl_base_module_t *module, mca_btl_base_module_error_cb_fn_t call)
{
    on_error = call;
    return OPAL_SUCCESS;
}

mca_btl_base_module_t **esp_shim_init(int *count, bool progress_threads, bool threads)
{
    mca_btl_base_module_t *sends = &esp_modules[0], *onesided = &esp_modules[ESP_ONESIDED];
    const char *key = getenv("OMPI_MCA_orte_precondition_transports"), *space = getenv("PMIX_NAMESPACE");
    char job[512];
    const void *blob = NULL;
    size_t length = 0;
    int rc, rails;
    struct esp_rail rail[ESP_RAILS];
    static struct {
        uint32_t bandwidth, latency;
    } figures[ESP_RAILS];

    *count = 0;
    /* The launcher's number of the job may come again; its key, made for transports like this one, does not. */
    snprintf(job, sizeof job, "open mpi %u %.200s %.200s", (unsigned) OPAL_PROC_MY_NAME.jobid, NULL == key ? "" : key,
             NULL == space ? "" : space);
    struct esp_setup setup = {
        .rank = OPAL_PROC_MY_NAME.vpid,
        .size = job_size(),
        .job = job,
        .host = opal_process_info.nodename,
        .if_include = if_include,
        .if_exclude = if_exclude,
        .path = path,
        .rings = rings,
        .max_message = esp_longest(sends),
        .eager = sends->btl_eager_limit,
        .backlog = backlog,
        .coalesce = coalesce_limit,
        .yield_after = yields() ? 0 : yield_after,
        .verbose = verbose > mca_btl_base_verbose ? verbose : mca_btl_base_verbose,
        .loud = asked_for(),
    };
    rails = esp_start(&setup, &blob, &length, rail);
    OPAL_MODEX_SEND(rc, ESP_EVERYBODY, &mca_btl_esp_component.btl_version, (void *) blob, length);
    if (rails <= 0) {
        return NULL;
    }
    mca_btl_base_module_t **modules = malloc(ESP_MODULES * sizeof *modules);
    if (OPAL_SUCCESS != rc || NULL == modules) {
        free(modules);
        esp_stop();
        return NULL;
    }
    sends->btl_register_error = remember_error;
    const uint32_t one = MCA_BTL_FLAGS_RDMA | MCA_BTL_FLAGS_ATOMIC_OPS | MCA_BTL_FLAGS_ATOMIC_FOPS;
    *onesided = *sends;
    onesided->btl_flags &= one;
    sends->btl_flags &= ~one;
    for (int i = rails - 1; i >= 0; --i) {
        mca_btl_base_module_t *module = &esp_modules[i];
        *module = *sends;
        figures[i].bandwidth = 0 != sends->btl_bandwidth ? sends->btl_bandwidth : 0 != rail[i].speed ? rail[i].speed : 10000;
        figures[i].latency = sends->btl_latency;
        figure("bandwidth", rail[i].name, "Mbit/s: long messages are spread over interfaces by it (default: what the driver says)",
               &figures[i].bandwidth);
        figure("latency", rail[i].name, "Short messages go by the interfaces with the smallest", &figures[i].latency);
        module->btl_bandwidth = figures[i].bandwidth;
        module->btl_latency = figures[i].latency;
    }
    onesided->btl_bandwidth = sends->btl_bandwidth;
    while (*count < rails) {
        modules[*count] = &esp_modules[*count];
        ++*count;
    }
    if (one == onesided->btl_flags) {
        modules[(*count)++] = onesided;
    }
    return modules;
}

/* --- Called by Rust --- */

int esp_shim_blob(uint32_t rank, void **blob, size_t *length)
{
    opal_process_name_t name = {.jobid = OPAL_PROC_MY_NAME.jobid, .vpid = rank};
    int rc;
    *blob = NULL;
    *length = 0;
    OPAL_MODEX_RECV(rc, &mca_btl_esp_component.btl_version, &name, (uint8_t **) blob, length);
    return OPAL_SUCCESS == rc ? 0 : -1;
}

void esp_shim_forget(void *blob) { free(blob); }

void esp_shim_say(const char *words) { opal_output(0, "%s", words); }

void esp_shim_help(const char *topic)
{
    static const char name[] = "help-mpi-btl-esp.txt";
    static int there = -1;
    if (there < 0) {
        /* The text lies beside the component, which need not be where Open MPI keeps its own. */
        Dl_info info;
        char file[4096] = "";
        there = 0;
        if (0 != dladdr(&esp_modules, &info) && NULL != info.dli_fname) {
            const char *slash = strrchr(info.dli_fname, '/');
            const int length = NULL == slash ? 0 : (int) (slash - info.dli_fname);
            snprintf(file, sizeof file, "%.*s/%s", length, info.dli_fname, name);
            if (length > 0 && 0 == access(file, R_OK)) {
                file[length] = 0;
                there = OPAL_SUCCESS == opal_show_help_add_dir(file);
            }
        }
    }
    if (there) {
        opal_show_help(name, topic, true);
    }
}

void esp_shim_failed(const char *words)
{
    if (NULL != on_error) {
        /* It says the words and ends the job. */
        on_error(&esp_modules[0], MCA_BTL_ERROR_FLAGS_FATAL, NULL, (char *) words);
    } else {
        opal_output(0, "%s", words);
    }
}
