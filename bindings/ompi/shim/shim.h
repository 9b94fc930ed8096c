/*
 * Interface between the two parts of the component. The C part contains the code that needs Open
 * MPI's headers: their macros, inline functions and the layouts of this build. The rest is in src/.
 */
#ifndef ESP_SHIM_H
#define ESP_SHIM_H

#include "opal_config.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "opal/class/opal_bitmap.h"
#include "opal/constants.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/btl/base/btl_base_error.h"
#include "opal/mca/btl/btl.h"
#if OPAL_MAJOR_VERSION == 4
#include "opal/mca/pmix/pmix.h"
#else
#include "opal/mca/pmix/pmix-internal.h"
#endif
#include "opal/util/argv.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/util/show_help.h"

/* Differences between release series. build.rs has the same list. */
#if OPAL_MAJOR_VERSION == 4 && OPAL_MINOR_VERSION == 1
#define ESP_MODEX_SCOPE OPAL_PMIX_GLOBAL
#define ESP_JOB_SIZE OPAL_PMIX_JOB_SIZE
#define ESP_UINT32 OPAL_UINT32
#define ESP_BTL_VERSION 310
#define ESP_REMOTE_COMPLETION 0
#elif (OPAL_MAJOR_VERSION == 5 || OPAL_MAJOR_VERSION == 6) && OPAL_MINOR_VERSION == 0
#define ESP_MODEX_SCOPE PMIX_GLOBAL
#define ESP_JOB_SIZE PMIX_JOB_SIZE
#define ESP_UINT32 PMIX_UINT32
#define ESP_BTL_VERSION 330
#define ESP_REMOTE_COMPLETION MCA_BTL_FLAGS_RDMA_REMOTE_COMPLETION
#else
#error "this component is for Open MPI 4.1, 5.0 and 6.0, see docs/open-mpi.md"
#endif

/* Defined in Rust, because a cdylib exports no symbols of C. */
extern mca_btl_base_component_t mca_btl_esp_component;

/* One sending module per interface, and one module with put, get and atomic operations but no send.
 * Only one-sided communication uses the latter; ob1's pipeline of sends is as fast as a put.
 */
enum { ESP_SENDING = 4, ESP_ONESIDED = ESP_SENDING, ESP_MODULES };
extern mca_btl_base_module_t esp_modules[ESP_MODULES];

/* Maximum length of a message. Eager messages may be longer than btl_max_send_size: ob1 sends them
 * whole, and does not check how many bytes were accepted. */
static inline size_t esp_max_message(const mca_btl_base_module_t *module)
{
    return module->btl_max_send_size > module->btl_eager_limit ? module->btl_max_send_size
                                                               : module->btl_eager_limit;
}

/* A peer as reached through one rail, see src/endpoint.rs. */
struct esp_endpoint {
    uint32_t rail, remote;
};

/* A peer as reached through one module: the rails of short and of long messages. */
struct mca_btl_base_endpoint_t {
    struct esp_endpoint short_messages, long_messages;
};

/* Registered memory. Peers get a copy of it. */
struct mca_btl_base_registration_handle_t {
    uint64_t key;
};

/* Parameters and facts for Rust. */
struct esp_parameters {
    uint32_t rank, size;
    const char *job;  /* unique to the job */
    const char *node; /* name of the node, for messages to the user */
    const char *if_include, *if_exclude, *path, *carrier;
    uint64_t rings, max_message, eager, backlog;
    int yields; /* empty polls yield the processor */
    int verbose;
    int report_errors; /* the user selected this component by name */
};

/* The interface of a sending module. */
struct esp_interface {
    char name[16];
    uint32_t speed; /* Mbit/s; 0: unknown */
};

/* Completion callback of a put, get or atomic operation, and its arguments. */
struct esp_completion {
    mca_btl_base_rdma_completion_fn_t callback;
    mca_btl_base_module_t *module;
    struct mca_btl_base_endpoint_t *endpoint;
    void *local;
    struct mca_btl_base_registration_handle_t *handle;
    void *context, *data;
};

/* --- In Rust (src/entry.rs) --- */
/* Returns why this component is to be ignored in `library` (MPI_Get_library_version); NULL if it is
 * of the release series of this build. */
const char *esp_other_series(const char *library);
/* Returns the version of this component and the Open MPI it is for. */
const char *esp_version(void);
/* Creates the rails. Returns the interfaces and their number. `entry`: the modex entry, owned by
 * Rust; it exists even without a rail. */
int esp_start(const struct esp_parameters *parameters, const void **entry, size_t *length,
              struct esp_interface interfaces[ESP_SENDING]);
void esp_stop(void);
/* Adds a peer, and returns 0 and its endpoint if `module` (-1: any) reaches it. */
int esp_add(int module, uint32_t rank, const void *entry, size_t length,
            struct mca_btl_base_endpoint_t *endpoint);
/* Returns the endpoint to reply to the peer at `source`. It stays valid. */
const struct mca_btl_base_endpoint_t *esp_source(struct esp_endpoint source);
/* Returns the endpoint of this process for operations on itself. */
void esp_own_endpoint(struct mca_btl_base_endpoint_t *endpoint);
/* Sends a message. Returns 1 if it was sent or copied, 0 if the descriptor is queued (esp_shim_sent
 * follows), else an error. Without a descriptor, the error may be OPAL_ERR_OUT_OF_RESOURCE.
 */
int esp_send(struct mca_btl_base_endpoint_t endpoint, uint8_t tag,
             const mca_btl_base_segment_t *segments, size_t count, void *descriptor);
/* Polls. Returns the number of events. */
int esp_progress(void);
/* Registers memory for peers. Returns 0 and its key, or an error. */
int esp_register(void *base, size_t size, int flags, uint64_t *key);
void esp_deregister(uint64_t key);
/* Each returns OPAL_SUCCESS if esp_shim_complete is called, possibly before the return. */
int esp_put(struct mca_btl_base_endpoint_t endpoint, const void *local, uint64_t remote,
            uint64_t key, size_t size, struct esp_completion *completion);
int esp_get(struct mca_btl_base_endpoint_t endpoint, void *local, uint64_t remote, uint64_t key,
            size_t size, struct esp_completion *completion);
/* `operation`: a value of enum mca_btl_base_atomic_op_t, or 0 for compare and swap. `result` may be
 * NULL. */
int esp_atomic(struct mca_btl_base_endpoint_t endpoint, void *result, uint64_t remote,
               uint64_t key, int operation, int four_bytes, uint64_t operand, uint64_t compare,
               struct esp_completion *completion);

/* --- In C, called by Rust --- */
void esp_shim_deliver(uint32_t module, struct esp_endpoint source, uint8_t tag, void *data,
                      size_t length);
void esp_shim_segments(void *frag, const mca_btl_base_segment_t **segments, size_t *count);
void esp_shim_sent(void *frag, int status);
void esp_shim_complete(struct esp_completion *completion, int status);
void esp_shim_fail_job(const char *text);
/* Returns 0 and a peer's modex entry, which the caller frees by esp_shim_free. */
int esp_shim_modex_entry(uint32_t rank, void **entry, size_t *length);
void esp_shim_free(void *entry);
void esp_shim_print(const char *text);
/* Shows a topic of help-mpi-btl-esp.txt, once per job. */
void esp_shim_show_help(const char *topic);

/* --- In C, between its files --- */
int esp_shim_open(void);
int esp_shim_close(void);
int esp_shim_register(void);
mca_btl_base_module_t **esp_shim_init(int *count, bool progress_threads, bool threads);
int esp_shim_progress(void);
void esp_fill_sends(mca_btl_base_module_t *module);
void esp_fill_onesided(mca_btl_base_module_t *module);

#endif
