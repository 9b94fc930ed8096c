/* The module for one-sided communication: put, get and atomic operations as messages. */
#include "shim.h"

static struct mca_btl_base_registration_handle_t *
register_mem(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *base,
             size_t size, uint32_t flags)
{
    struct mca_btl_base_registration_handle_t *handle = malloc(sizeof *handle);
    if (NULL != handle && 0 != esp_register(base, size, (int) flags, &handle->key)) {
        free(handle);
        handle = NULL;
    }
    return handle;
}

static int deregister_mem(mca_btl_base_module_t *module,
                          struct mca_btl_base_registration_handle_t *handle)
{
    esp_deregister(handle->key);
    free(handle);
    return OPAL_SUCCESS;
}

/* osc/rdma passes no handle for the window of a single process. Peers refuse key 0. */
static uint64_t key_of(const struct mca_btl_base_registration_handle_t *handle)
{
    return NULL == handle ? 0 : handle->key;
}

static struct esp_completion *new_completion(mca_btl_base_module_t *module,
                                             struct mca_btl_base_endpoint_t *endpoint, void *local,
                                             struct mca_btl_base_registration_handle_t *handle,
                                             mca_btl_base_rdma_completion_fn_t callback,
                                             void *context, void *data)
{
    struct esp_completion *completion = malloc(sizeof *completion);
    if (NULL != completion) {
        *completion =
            (struct esp_completion) {callback, module, endpoint, local, handle, context, data};
    }
    return completion;
}

static int started(int rc, struct esp_completion *completion)
{
    if (OPAL_SUCCESS != rc) {
        free(completion);
    }
    return rc;
}

void esp_shim_complete(struct esp_completion *completion, int status)
{
    const struct esp_completion c = *completion;
    free(completion);
    if (NULL != c.callback) {
        c.callback(c.module, c.endpoint, c.local, c.handle, c.context, c.data, status);
    }
}

static int put(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local,
               uint64_t remote, struct mca_btl_base_registration_handle_t *local_handle,
               struct mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
               int order, mca_btl_base_rdma_completion_fn_t callback, void *context, void *data)
{
    struct esp_completion *completion =
        new_completion(module, endpoint, local, local_handle, callback, context, data);
    if (NULL == completion) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return started(esp_put(*endpoint, local, remote, key_of(remote_handle), size, completion),
                   completion);
}

static int get(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local,
               uint64_t remote, struct mca_btl_base_registration_handle_t *local_handle,
               struct mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
               int order, mca_btl_base_rdma_completion_fn_t callback, void *context, void *data)
{
    struct esp_completion *completion =
        new_completion(module, endpoint, local, local_handle, callback, context, data);
    if (NULL == completion) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return started(esp_get(*endpoint, local, remote, key_of(remote_handle), size, completion),
                   completion);
}

/* `op` is 0 for compare and swap. */
static int atomic(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint,
                  void *local, struct mca_btl_base_registration_handle_t *local_handle,
                  uint64_t remote, struct mca_btl_base_registration_handle_t *remote_handle, int op,
                  uint64_t operand, uint64_t compare, int flags,
                  mca_btl_base_rdma_completion_fn_t callback, void *context, void *data)
{
    struct esp_completion *completion =
        new_completion(module, endpoint, local, local_handle, callback, context, data);
    if (NULL == completion) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    if (flags & MCA_BTL_ATOMIC_FLAG_FLOAT) {
        return started(OPAL_ERR_NOT_SUPPORTED, completion);
    }
    const int four_bytes = flags & MCA_BTL_ATOMIC_FLAG_32BIT;
    return started(esp_atomic(*endpoint, local, remote, key_of(remote_handle), op, four_bytes,
                              operand, compare, completion),
                   completion);
}

static int atomic_op(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint,
                     uint64_t remote, struct mca_btl_base_registration_handle_t *remote_handle,
                     mca_btl_base_atomic_op_t op, uint64_t operand, int flags, int order,
                     mca_btl_base_rdma_completion_fn_t callback, void *context, void *data)
{
    return atomic(module, endpoint, NULL, NULL, remote, remote_handle, (int) op, operand, 0, flags,
                  callback, context, data);
}

static int atomic_fop(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint,
                      void *local, uint64_t remote,
                      struct mca_btl_base_registration_handle_t *local_handle,
                      struct mca_btl_base_registration_handle_t *remote_handle,
                      mca_btl_base_atomic_op_t op, uint64_t operand, int flags, int order,
                      mca_btl_base_rdma_completion_fn_t callback, void *context, void *data)
{
    return atomic(module, endpoint, local, local_handle, remote, remote_handle, (int) op, operand,
                  0, flags, callback, context, data);
}

static int atomic_cswap(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint,
                        void *local, uint64_t remote,
                        struct mca_btl_base_registration_handle_t *local_handle,
                        struct mca_btl_base_registration_handle_t *remote_handle, uint64_t compare,
                        uint64_t value, int flags, int order,
                        mca_btl_base_rdma_completion_fn_t callback, void *context, void *data)
{
    return atomic(module, endpoint, local, local_handle, remote, remote_handle, 0, value, compare,
                  flags, callback, context, data);
}

void esp_fill_onesided(mca_btl_base_module_t *module)
{
    module->btl_put = put;
    module->btl_get = get;
    module->btl_atomic_op = atomic_op;
    module->btl_atomic_fop = atomic_fop;
    module->btl_atomic_cswap = atomic_cswap;
    module->btl_register_mem = register_mem;
    module->btl_deregister_mem = deregister_mem;
    module->btl_registration_handle_size = sizeof(struct mca_btl_base_registration_handle_t);
    module->btl_put_limit = module->btl_get_limit = SIZE_MAX;
    module->btl_put_alignment = module->btl_get_alignment = 0;
    /* Local memory needs no registration. */
    module->btl_put_local_registration_threshold = module->btl_get_local_registration_threshold =
        SIZE_MAX;
}
